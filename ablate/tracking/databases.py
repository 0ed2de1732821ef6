"""Databases: the driver of a PostgreSQL address, hiding passwords, and locks that all machines on one server share."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
import sqlite3
import textwrap
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

from ablate.config.errors import StoreError
from ablate.config.lazy import describe_installation

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

T = TypeVar("T")
logger = logging.getLogger(__name__)

AWAY = 120.0  # seconds that a server which does not answer is waited for
AGAIN = 0.5  # seconds between two tries
LOCKED = 120.0  # seconds that a process waits for another that holds a lock, of a file or of a server
ASKING, CREATING = 1, 2  # what locks are taken for: a trial's turn, and making tables
_DRIVERS = ("psycopg", "psycopg2")


class LostConnectionError(Exception):
    """The server closed a connection in the middle of a step, which must be repeated from its start."""


def remember_address(url: str) -> str:
    """Return `url`, and register its password for `redact`."""
    written = [login[2] for login in _LOGIN.finditer(url)]
    written += [field[2] for field in _FIELD.finditer(url) if _SECRET.search(field[1])]
    hidden = _hide_passwords(url)  # a password such as the user's name is hidden within an address alone
    secrets = {text for secret in written for text in (secret, unquote(secret))}
    _passwords.update(secret for secret in secrets if len(secret) >= _LONG and secret not in hidden)
    return url


def add_driver(url: str, what: str = "the Optuna storage") -> str:
    """Return `url`, the address of `what`; a plain `postgresql://` or `postgres://` one with the driver that is
    installed, since the choice of SQLAlchemy itself differs between its versions. Raises StoreError if it is malformed.
    """
    is_file = url.startswith(("sqlite:", "journal:", "file:"))
    if not is_file and re.search(r"[@\s]", url) and not _WELL_FORMED.fullmatch(url):
        raise StoreError(  # without the address: a program cannot know what in it is the password
            f"The address of {what} is malformed: it must begin like postgresql://, and an @, a / or a blank in its "
            "password must be written as %40, %2F or %20."
        )
    remember_address(url)
    plain = re.match(r"postgres(ql)?://", url)
    driver = next((name for name in _DRIVERS if find_spec(name)), None) if plain else None
    if plain and driver:
        return f"postgresql+{driver}://{url[plain.end() :]}"
    return f"postgresql://{url[plain.end() :]}" if plain else url


def explain_missing_driver(error: ImportError, what: str) -> StoreError:
    """Return the error for a database whose Python module is not installed; `what` names the database."""
    module = getattr(error.__cause__, "name", None) or error.name or str(error)
    hint = f" {describe_installation('cluster')}" if module in _DRIVERS else ""
    return StoreError(f"{what} needs the Python module {module}, which is not installed.{hint}")


def is_away(error: BaseException | None) -> bool:
    """Return whether `error`, or its cause, comes from a server that does not answer, restarts or has closed the
    connection."""
    from sqlalchemy import exc

    while error is not None:
        if isinstance(error, (exc.OperationalError, exc.InterfaceError, exc.PendingRollbackError, LostConnectionError)):
            return True
        if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
            return True
        error = error.__cause__
    return False


def repeat_while_away(action: Callable[[], T], url: str) -> T:
    """Return the result of `action`, which is repeated for two minutes while the server at `url` is unreachable. Raises
    the last error of `action`."""
    begin: float | None = None
    while True:
        try:
            result = action()
        except Exception as error:
            if not is_away(error) or (begin is not None and time.monotonic() - begin > AWAY):
                raise
            if begin is None:
                begin = time.monotonic()
                text = f"The database {redact(url)} does not answer: {describe_failure(error)}"
                logger.warning(f"\n{text} Waiting for it up to {AWAY / 60:g} minutes.")
            time.sleep(AGAIN)
        else:
            if begin is not None:
                logger.warning(f"\nThe database {redact(url)} answers again.")
            return result


def describe_failure(error: BaseException) -> str:
    """Return the database's reason for a failed call, instead of SQLAlchemy's message, such as that it cannot reconnect
    until an invalid transaction is rolled back."""
    from sqlalchemy import exc

    chain: list[BaseException] = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    own = [one for one in chain if isinstance(one, exc.DBAPIError) and one.orig is not None]
    if own:
        text = shorten(own[0].orig or own[0])
    elif any(isinstance(one, exc.PendingRollbackError) for one in chain):
        text = "the connection was lost in the middle of a transaction"
    else:
        text = shorten(error.__cause__ or error)
    return text.rstrip(".") + "."


@contextlib.contextmanager
def hold_server_lock(engine: Engine, number: int) -> Iterator[Connection | None]:
    """Hold a lock of the database of `engine`, one process at a time over all machines; SQLite needs none. The lock
    belongs to the yielded connection, so it is released when the process dies or the server restarts. Raises StoreError
    after two minutes of waiting.
    """
    from sqlalchemy import text
    from sqlalchemy.exc import OperationalError, SQLAlchemyError

    kind = engine.dialect.name
    if kind not in ("postgresql", "mysql", "mariadb"):
        yield None
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
                "Another process has held the lock of the database for two minutes. Stop that process, or wait."
            )
        try:
            yield connection
        finally:
            try:
                connection.execute(text(give))
                connection.commit()
            except SQLAlchemyError:  # the connection is gone, and the lock with it
                connection.invalidate()


def shorten(error: BaseException) -> str:
    """Return an error's text on one line, cut at a word, without passwords and without what SQLAlchemy adds: the class
    of the driver's error, the statement, the link to its manual."""
    text = re.sub(r"\(Background on this error at: \S+\)|\[SQL: .*", "", redact(str(error)), flags=re.DOTALL)
    text = re.sub(r"\((sqlite3|psycopg2?|pymysql)[\w.]*\) ", "", text)
    return textwrap.shorten(text, 300, placeholder=" ...")


def redact(text: str) -> str:
    """Return `text`, an address or a longer text with addresses in it, without their passwords. A long password of an
    address that this process was given is hidden wherever it stands, as in the message of a driver."""
    for secret in sorted(_passwords, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _ADDRESS.sub(lambda match: _hide_passwords(match.group()), text)


_passwords: set[str] = set()  # long ones of addresses that this process was given
_LONG = 8  # letters
_WELL_FORMED = re.compile(r"[\w.+-]+://([^\s:/@]*(:[^\s/@]*)?@)?[^\s@]*")
_ADDRESS = re.compile(r"(?<![\w.+-])[\w.+-]+://\S+")  # from the start of a word: else its time is quadratic
_LOGIN = re.compile(r"(://[^:/@]*):([^/@]*)@")
_FIELD = re.compile(r"(?<=[?&])([^?=&]*)=([^&]*)")  # of the query of an address
_SECRET = re.compile(r"pass|pwd|secret|token", re.IGNORECASE)  # in the name of a field


def _hide_passwords(address: str) -> str:
    address = _LOGIN.sub(r"\1:***@", address)
    return _FIELD.sub(lambda field: f"{field[1]}=***" if _SECRET.search(field[1]) else field[0], address)


@contextlib.contextmanager
def hold_creation_lock(uri: str, create: Callable[[str], None]) -> Iterator[str]:
    """Hold a lock under which the database at `uri` is opened and, where its tables are missing, created; yields the
    address to open.

    A missing SQLite file is made by `create` under another name and moved into place when it is whole: a killed process
    leaves no half-made one. The file is for this user alone. One that this process can only read needs no lock.
    """
    file = sqlite_file(uri)
    if file is None:
        with _lock_server_creation(uri):
            yield uri
        return
    if is_read_only(file):
        yield _choose_reading(file)
        return
    from filelock import FileLock

    if not file.parent.is_dir():  # the lock would make it
        raise StoreError(f"The database {redact(uri)} cannot be made: there is no folder {file.parent}.")
    with FileLock(f"{file}.lock"):
        if not file.exists():
            part = file.with_name(f"{file.name}.part")
            for left_over in file.parent.glob(f"{glob.escape(part.name)}*"):
                left_over.unlink()
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # for this user alone, from the start
            create(sqlite_url(part))
            with contextlib.closing(sqlite3.connect(part)) as database:
                database.execute("PRAGMA journal_mode=WAL")  # readers and writers do not wait for each other
            os.replace(part, file)
        yield uri


def file_exists(file: Path) -> bool:
    """Return whether there is such a file. Raises StoreError if that may not be known."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}.") from None
    return True


def is_read_only(file: Path) -> bool:
    """Return whether the database `file` exists, and this process cannot write to it or to its folder."""
    return file_exists(file) and not all(os.access(path, os.W_OK) for path in (file, file.parent))


def _choose_reading(file: Path) -> str:
    """Return the address at which a database is only read. What its last writer has not moved into it yet is read with
    the index that the writer left beside it, which cannot be made here."""
    wal, index = (file.with_name(f"{file.name}-{end}") for end in ("wal", "shm"))
    if index.exists():
        return sqlite_url(file, mode="ro")
    if wal.exists() and wal.stat().st_size:
        raise StoreError(
            f"{file} can only be read, and {wal.name} has changes that cannot be read without {index.name}. Copy the "
            f"folder {file.parent} to a place that you may write to, and set ABLATE_STORE to the copy."
        )
    return sqlite_url(file, mode="ro", immutable="1")


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


def sqlite_url(file: Path, **options: str) -> str:
    """Return the address of the SQLite database `file`, with `options` of SQLite's own addresses, in which any path can
    be written."""
    if not options and not re.search(r"[?%#{}]", str(file)):
        return f"sqlite:///{file}"
    from sqlalchemy import URL

    path = f"file:{quote(str(file))}"
    return URL.create("sqlite", database=path, query={**options, "uri": "true"}).render_as_string()


def sqlite_file(uri: str) -> Path | None:
    """Return the file of the SQLite database at `uri`; None for a server."""
    if not uri.startswith("sqlite:///"):
        return None
    path = uri.removeprefix("sqlite:///")
    if re.search("[?%]", path):  # else SQLAlchemy, whose import takes a moment, has nothing to read in it
        from sqlalchemy import make_url

        path = make_url(uri).database or ""
    return Path(unquote(path.removeprefix("file:")) if path.startswith("file:") else path)
