"""Optuna's storage in a database: an SQLite file, for the processes of one machine, or a server."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

import optuna
import sqlalchemy.exc
from optuna.storages import BaseStorage, RDBStorage

from ablate.config.errors import StoreError
from ablate.scheduler.optuna_private import DatabaseServer, TrialCache
from ablate.scheduler.storages.file_lock import hold_file_lock
from ablate.tracking.databases import (
    LOCKED,
    describe_failure,
    explain_missing_driver,
    hold_creation_lock,
    is_away,
    redact,
    sqlite_file,
)

_UNREADABLE = (OSError, ValueError, LookupError, AssertionError, RuntimeError)  # of a file that is something else
_CHECKED: set[tuple[str, int]] = set()  # databases whose tables this process has seen to be those of its Optuna


class DatabaseFile(RDBStorage):
    """Optuna's storage in an SQLite file; its lock is a file beside the database."""

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the lock under which one process at a time decides what comes next."""
        file = sqlite_file(self.url)
        with contextlib.nullcontext() if self.url.endswith(":memory:") else hold_file_lock(f"{file}.asking"):
            yield


def open_database(url: str) -> BaseStorage:
    """Return Optuna's storage at `url`, created if missing. Raises StoreError if it cannot be used."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    file = sqlite_file(url)
    try:
        with hold_creation_lock(url, _create_tables) as address:
            database = (url, file.stat().st_ino if file else 0)
            known = database in _CHECKED or address != url  # looking takes a fifth of a second, and may write
            storage = (DatabaseFile if file else DatabaseServer)(
                address,
                # a server's connections are tried before each use, so that its restart between two uses goes unnoticed
                engine_kwargs={"connect_args": {"timeout": LOCKED}} if file else {"pool_pre_ping": True},
                skip_compatibility_check=known,
                skip_table_creation=known,
            )
            _CHECKED.add(database)
            return TrialCache(storage)  # all studies share what is read of finished trials
    except ImportError as error:
        raise explain_missing_driver(error, f"The Optuna storage {redact(url)}") from None
    except (optuna.exceptions.OptunaError, sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, *_UNREADABLE) as error:
        text = describe_failure(error).rstrip(".")
        advice = ", or move a damaged file away" if file else " (sqlite:///FILE or postgresql://HOST/NAME)"
        away = error if not file and is_away(error) else None  # lets a caller wait for a server that was there before
        raise StoreError(
            f"The Optuna storage {redact(url)} cannot be used: {text}. Choose another with --storage URL{advice}."
        ) from away


def _create_tables(url: str) -> None:
    """Create the tables of Optuna."""
    RDBStorage(url).engine.dispose()
