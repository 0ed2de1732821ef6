"""The kind of storage that an address names. A kind's module imports Optuna, which takes a second, and is imported when
one is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.tracking.databases import sqlite_file

if TYPE_CHECKING:
    from optuna.storages import BaseStorage


def open_address(url: str) -> BaseStorage:
    """Return Optuna's storage at `url`, created if missing: a journal, or a database of SQLAlchemy's. Raises StoreError
    if it cannot be used."""
    if url.startswith("journal://"):
        from ablate.scheduler.storages.journal import open_journal

        return open_journal(url)
    from ablate.scheduler.storages.databases import open_database

    return open_database(url)


def find_file(url: str) -> Path | None:
    """Return the file that is the storage at `url`; None for a server."""
    if url.startswith("journal://"):
        from ablate.scheduler.storages.journal import journal_file

        return journal_file(url)
    return sqlite_file(url)


def find_kind(storage: BaseStorage) -> Any:
    """Return the storage without the cache that Optuna has before a database."""
    from ablate.scheduler.optuna_private import find_backend

    return find_backend(storage)
