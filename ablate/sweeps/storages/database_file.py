"""Optuna's storage in an SQLite file, for the processes of one machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from optuna.storages import RDBStorage

from ablate.sweeps.storages.file_lock import hold_file_lock
from ablate.tracking.databases import sqlite_file


class DatabaseFile(RDBStorage):
    """Optuna's storage; its lock is a file beside the database."""

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the lock under which one process at a time decides what comes next."""
        file = sqlite_file(self.url)
        with contextlib.nullcontext() if self.url.endswith(":memory:") else hold_file_lock(f"{file}.asking"):
            yield

    def guard_writes(self, held: None) -> contextlib.AbstractContextManager[None]:
        """Do nothing: the lock cannot be lost while its process lives."""
        return contextlib.nullcontext()
