"""Optuna's storages as a sweep uses them, each with its own lock for the order of trials (`hold_lock`): a database of
SQLAlchemy's, a file for the processes of one machine or a server; and a journal, a file to which every process appends
what it changes, for file systems that machines share. A journal needs no server, and locks of files that all see."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy.exc
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from ablate.config.errors import StoreError
from ablate.scheduler.optuna_private import DatabaseServer, JournalLock, TrialCache
from ablate.tracking.databases import (
    LOCKED,
    describe_failure,
    explain_missing_driver,
    hold_creation_lock,
    is_away,
    is_read_only,
    redact,
    sqlite_file,
)

_POLL = 0.003  # seconds between two tries to take a lock: a process that looks seldom hardly gets one that many want
_LOCAL_OPTIONS = {  # kind of file system -> mount options with which a lock excludes the processes of one machine only
    "nfs": {"nolock", "local_lock=all", "local_lock=flock"},
    "nfs4": {"nolock", "local_lock=all", "local_lock=flock"},
    "lustre": {"localflock"},
    "cifs": {"nobrl"},
    "smb3": {"nobrl"},
}
_LOCAL_KINDS = {"fuse.sshfs"}  # whose locks are never seen by another machine


@contextlib.contextmanager
def hold_file_lock(file: str) -> Iterator[None]:
    """Hold the lock `file`, one process at a time. Raises StoreError after two minutes of waiting."""
    from filelock import FileLock, Timeout

    try:
        lock = FileLock(file, timeout=LOCKED, poll_interval=_POLL, thread_local=False)
        lock.acquire()
    except Timeout:
        raise StoreError(f"Another process holds {file} for two minutes. Stop it, or wait.") from None
    try:
        yield
    finally:
        lock.release()


def find_lock_failure(folder: Path) -> str | None:
    """Return why files of `folder` cannot be locked so that all processes of all machines see it; None if they can.

    Raises OSError if no file can be written there.
    """
    kind, options = read_mount(folder)
    if kind in _LOCAL_KINDS:
        return f"locks on {kind} are not seen by other machines"
    if local := sorted(_LOCAL_OPTIONS.get(kind, set()) & options):
        return f"it is mounted with {local[0]}, so that locks are not seen by other machines"
    with tempfile.NamedTemporaryFile(prefix=".ablate-lock-", dir=folder) as first, open(first.name, "rb") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return f"a file cannot be locked ({error.strerror})"
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            busy = error.errno in (errno.EAGAIN, errno.EACCES)
            return None if busy else f"a file cannot be locked ({error.strerror})"
    return "a file that is locked can be locked again"


def read_mount(folder: Path, table: str = "/proc/self/mountinfo") -> tuple[str, set[str]]:
    """Return the kind of the file system of `folder` and its mount options; ('', empty) where the system has no
    `table` of mounts."""
    try:
        lines = Path(table).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "", set()
    real, best = os.path.realpath(folder), ("", "", set[str]())
    for line in lines:
        own, _, rest = line.partition(" - ")
        mount, kind, options = own.split()[4].replace("\\040", " "), *rest.split()[::2]
        inside = mount == "/" or real == mount or real.startswith(f"{mount}/")
        if inside and len(mount) >= len(best[0]):  # of two on one place the later is on top
            best = (mount, kind, {*own.split()[5].split(","), *options.split(",")})
    return best[1], best[2]


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
            return TrialCache(storage)  # all studies share the finished trials that were read
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


SCHEME = "journal://"
_BEGIN = b'{"op_code":'  # of every line


def journal_file(url: str) -> Path:
    """Return the file of the journal at `url`. Raises StoreError if its path is not absolute."""
    path = url.removeprefix(SCHEME)
    if not path.startswith("/") or path.endswith("/"):
        raise StoreError(f"{url} is not the address of a journal: give its absolute path, such as {SCHEME}/shared/me/j")
    return Path(path)


def open_journal(url: str) -> JournalStorage:
    """Return the storage in the journal at `url`, created if missing. Raises StoreError if it cannot be used."""
    file = journal_file(url)
    try:
        if not file.parent.is_dir():
            raise StoreError(f"The journal {url} cannot be made: there is no folder {file.parent}.")
        if not is_read_only(file) and (failure := find_lock_failure(file.parent)):
            raise StoreError(
                f"The journal {url} cannot be used: on the file system of {file.parent} {failure}, and two processes "
                "would write over each other. Choose another folder, or a database: --storage postgresql://HOST/NAME."
            )
        _check_content(file, url)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # for this user alone
        return SharedJournal(file, url)
    except (OSError, ValueError, LookupError, AssertionError) as error:
        text = getattr(error, "strerror", None) or f"its content is not valid ({type(error).__name__})"
        raise StoreError(
            f"The journal {url} cannot be used: {text}. Choose another with --storage URL, or move a damaged file away."
        ) from None


def _check_content(file: Path, url: str) -> None:
    """Raise StoreError for a file that is something else, which must not be appended to."""
    if file.exists():
        with file.open("rb") as opened:
            begin = opened.read(len(_BEGIN))
        if not _BEGIN.startswith(begin):
            raise StoreError(f"The journal {url} cannot be used: the file is not a journal. Choose another name.")


class AppendLock(JournalLock):
    """The lock under which one process at a time appends to `file`. Unlike Optuna's own it ends with its process, so
    that it is never taken from one that is slow."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._held = contextlib.ExitStack()

    def acquire(self) -> bool:
        """Take the lock, and remove the part of a line that a killed process, or a full disk, has left."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(hold_file_lock(f"{self.file}.lock"))
            _remove_torn_line(self.file)
            self._held = stack.pop_all()
        return True

    def release(self) -> None:
        """Give the lock back."""
        self._held.close()


def _remove_torn_line(file: Path) -> None:
    """Remove an unfinished last line, which no process has reported as written."""
    with file.open("rb+") as opened:
        end = position = opened.seek(0, os.SEEK_END)
        while position > 0:
            start = max(0, position - 4096)
            opened.seek(start)
            newline = opened.read(position - start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position < end:
            opened.truncate(position)


class JournalFile(JournalFileBackend):
    """Optuna's file, whose errors of reading and writing are sentences."""

    def __init__(self, file: Path, url: str) -> None:
        super().__init__(str(file), AppendLock(file))
        self.url = url

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines."""
        with self._explain():
            super().append_logs(logs)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        """Yield the lines from a number on."""
        with self._explain():
            yield from super().read_logs(log_number_from)

    @contextlib.contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = (
                f"The journal {self.url} failed: {error.strerror}. Finished trials are safe; run the same command again"
            )
            raise StoreError(f"{text} once that is mended.") from None


class SharedJournal(JournalStorage):
    """Optuna's storage, with a lock."""

    def __init__(self, file: Path, url: str) -> None:
        self.file, self.url = file, url
        super().__init__(JournalFile(file, url))

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the lock under which one process at a time decides what comes next."""
        with hold_file_lock(f"{self.file}.asking"):
            yield
