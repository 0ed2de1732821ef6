"""Addresses of databases: which driver a PostgreSQL one takes, and locks that all machines on one server share."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import textwrap
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.config.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy import Engine

LOCKED = 120.0  # seconds that a process waits for another that holds a lock, of a file or of a server
ASKING, CREATING = 1, 2  # what locks are taken for: a trial's turn, and making tables
_DRIVERS = ("psycopg", "psycopg2")


def add_driver(url: str) -> str:
    """Return `url`; a plain `postgresql://` or `postgres://` one with the driver that is installed, since the choice of
    SQLAlchemy itself differs between its versions."""
    plain = re.match(r"postgres(ql)?://", url)
    driver = next((name for name in _DRIVERS if find_spec(name)), None) if plain else None
    if plain and driver:
        return f"postgresql+{driver}://{url[plain.end() :]}"
    return f"postgresql://{url[plain.end() :]}" if plain else url


def explain_missing_driver(error: ImportError, what: str) -> StoreError:
    """Return the error of a database whose Python module is not installed; `what` names the database."""
    module = getattr(error.__cause__, "name", None) or error.name or str(error)
    hint = " Install it: pip install 'ablate[cluster]'" if module in _DRIVERS else ""
    return StoreError(f"{what} needs the Python module {module}, which is not installed.{hint}")


@contextlib.contextmanager
def hold_server_lock(engine: Engine, number: int) -> Iterator[None]:
    """Hold a lock of the database of `engine`, one process at a time over all machines; SQLite takes none.

    The lock is the connection's, so a process that dies holds none. Raises StoreError after two minutes of waiting.
    """
    from sqlalchemy import text
    from sqlalchemy.exc import OperationalError

    kind = engine.dialect.name
    if kind not in ("postgresql", "mysql", "mariadb"):
        yield
        return
    with engine.connect() as connection:
        if kind == "postgresql":
            give = f"SELECT pg_advisory_unlock(4149, {number})"
            connection.execute(text(f"SET LOCAL lock_timeout = '{LOCKED:g}s'"))
            try:
                connection.execute(text(f"SELECT pg_advisory_lock(4149, {number})"))
                taken = True
            except OperationalError as error:
                if getattr(error.orig, "pgcode", getattr(error.orig, "sqlstate", None)) != "55P03":  # lock timeout
                    raise
                taken = False
        else:
            give = f"SELECT RELEASE_LOCK('ablate-{number}')"
            taken = connection.execute(text(f"SELECT GET_LOCK('ablate-{number}', {LOCKED:g})")).scalar() == 1
        if not taken:
            raise StoreError(
                "Another process holds the lock of the database for two minutes. Stop that process, or wait."
            )
        try:
            yield
        finally:
            connection.execute(text(give))
            connection.commit()


def shorten(error: BaseException) -> str:
    """Return an error's text on one line, cut at a word, without passwords and SQLAlchemy's link to its manual."""
    text = re.sub(r"\(Background on this error at: \S+\)", "", redact(str(error)))
    return textwrap.shorten(text, 300, placeholder=" ...")


def redact(text: str) -> str:
    """Return `text` without the passwords of the addresses in it."""
    return re.sub(r"(://[^:/@\s]+:)[^@\s]+@", r"\1***@", text)


@contextlib.contextmanager
def hold_creation_lock(uri: str, create: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock under which the database at `uri` is opened and, where its tables are missing, created.

    A missing SQLite file is made by `create` under another name and moved into place when it is whole: a killed process
    leaves no half-made one.
    """
    file = sqlite_file(uri)
    if file is None:
        with _lock_server_creation(uri):
            yield
        return
    from filelock import FileLock

    if not file.parent.is_dir():  # the lock would make it
        raise StoreError(f"The database {redact(uri)} cannot be made: there is no folder {file.parent}.")
    with FileLock(f"{file}.lock"):
        if not file.exists():
            part = file.with_name(f"{file.name}.part")
            for left_over in file.parent.glob(f"{part.name}*"):
                left_over.unlink()
            create(f"sqlite:///{part}")
            with contextlib.closing(sqlite3.connect(part)) as database:
                database.execute("PRAGMA journal_mode=WAL")  # readers and writers do not wait for each other
            os.replace(part, file)
        yield


@contextlib.contextmanager
def _lock_server_creation(uri: str) -> Iterator[None]:
    """Hold the lock of a database server; an MLflow server needs none."""
    from sqlalchemy import create_engine, pool

    if not uri.startswith(("postgres", "mysql", "mariadb")):
        yield
        return
    try:
        engine = create_engine(uri, poolclass=pool.NullPool)
    except ImportError as error:
        raise explain_missing_driver(error, f"The database {redact(uri)}") from None
    with hold_server_lock(engine, CREATING):
        yield


def sqlite_file(uri: str) -> Path | None:
    """Return the file of the SQLite database at `uri`; None for a server."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None
