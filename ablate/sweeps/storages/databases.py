"""Opening Optuna's storage in a database: an SQLite file, or a server."""

from __future__ import annotations

import sqlite3
from typing import Any

import optuna
import sqlalchemy.exc
from optuna.storages import BaseStorage, RDBStorage

from ablate.config.errors import StoreError
from ablate.sweeps.storages.cache import TrialCache
from ablate.sweeps.storages.database_file import DatabaseFile
from ablate.sweeps.storages.database_server import DatabaseServer, WaitingDatabase
from ablate.tracking.databases import (
    LOCKED,
    describe_failure,
    explain_missing_driver,
    hold_creation_lock,
    is_away,
    redact,
    sqlite_file,
)

CONNECTIONS = 8  # that a proxy holds at most
_UNREADABLE = (OSError, ValueError, LookupError, AssertionError, RuntimeError)  # of a file that is something else
_CHECKED: set[tuple[str, int]] = set()  # databases whose tables this process has seen to be those of its Optuna


def open_database(url: str) -> BaseStorage:
    """Return the storage in the database at `url`, whose calls wait for a server that is away."""
    # a server's connections are tried before each use, so that one that restarts between two uses is not noticed
    return _open(url, WaitingDatabase, {"pool_pre_ping": True})


def open_behind_proxy(url: str) -> BaseStorage:
    """Return the storage in the database at `url` for a proxy: on few connections, and without waiting for a server
    that is away, since the clients of the proxy wait."""
    pool = {"pool_size": CONNECTIONS, "max_overflow": 0, "pool_timeout": LOCKED}
    return _open(url, DatabaseServer, {"pool_pre_ping": True, **pool})


def _open(url: str, server: type[RDBStorage], engine: dict[str, Any]) -> BaseStorage:
    """Return Optuna's storage at `url`, created if missing; that of a server is of the class `server`, with the
    arguments `engine`. Raises StoreError if it cannot be used."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    file = sqlite_file(url)
    try:
        with hold_creation_lock(url, _create_tables) as address:
            database = (url, file.stat().st_ino if file else 0)
            known = database in _CHECKED or address != url  # looking takes a fifth of a second, and may write
            storage = (DatabaseFile if file else server)(
                address,
                engine_kwargs={"connect_args": {"timeout": LOCKED}} if file else engine,
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
        away = error if not file and is_away(error) else None  # for who waits for a server that was there before
        raise StoreError(
            f"The Optuna storage {redact(url)} cannot be used: {text}. Choose another with --storage URL{advice}."
        ) from away


def _create_tables(url: str) -> None:
    """Makes the tables of Optuna."""
    optuna.storages.RDBStorage(url).engine.dispose()
