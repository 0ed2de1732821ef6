"""Optuna's storage in a journal: a file to which every process appends what it changes, for file systems that machines
share. It needs no server, and locks of files that all machines see.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from ablate.config.errors import StoreError
from ablate.scheduler.optuna_private import JournalLock
from ablate.scheduler.storages.file_lock import find_lock_failure, hold_file_lock
from ablate.tracking.databases import is_read_only

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
        """Take the lock, and remove what a process that was killed, or a full disk, left of a line."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(hold_file_lock(f"{self.file}.lock"))
            _remove_torn_line(self.file)
            self._held = stack.pop_all()
        return True

    def release(self) -> None:
        """Give the lock back."""
        self._held.close()


def _remove_torn_line(file: Path) -> None:
    """Remove what stands behind the last end of a line: nobody was told that it was written."""
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
    """Optuna's file; that it cannot be read or written is told in a sentence."""

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
