"""The trainings that share this machine with a run: its seconds tell how fast it is only if it trained alone."""

from __future__ import annotations

import getpass
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def watch_company(folder: Path | None = None) -> Iterator[Callable[[], int | None]]:
    """Within this context a training of this process is known to others of this user on this machine. Yields a function
    that returns how many others it has met so far; None where it cannot be known, as in a full temporary folder.

    Each training holds the lock of a file in `folder`, which ends with its process, and signs in at those that it finds
    locked. Whoever begins later finds the earlier one, so that each pair meets once. Other programs are not seen.
    """
    name, stack = uuid.uuid4().hex, ExitStack()
    try:
        folder = folder or Path(tempfile.gettempdir()) / f"ablate-training-{getpass.getuser()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        own, guests = folder / f"{name}.lock", folder / f"{name}.guests"
        stack.callback(own.unlink, missing_ok=True)
        stack.callback(guests.unlink, missing_ok=True)
        stack.enter_context(FileLock(own, timeout=0))
        for other in folder.glob("*.lock"):
            if other != own and _is_locked(other):
                _sign_in(other.with_suffix(".guests"), name)
                _sign_in(guests, other.stem)
    except (OSError, KeyError, Timeout):  # KeyError: a user without a name
        stack.close()
        yield lambda: None
        return

    def count() -> int:
        return len({*guests.read_text().split()}) if guests.exists() else 0

    with stack:
        yield count


def _is_locked(file: Path) -> bool:
    """Return whether a process holds the lock; the file of one that was killed is removed."""
    try:
        with FileLock(file, timeout=0):
            file.unlink(missing_ok=True)
            file.with_suffix(".guests").unlink(missing_ok=True)
    except Timeout:
        return True
    return False


def _sign_in(guests: Path, name: str) -> None:
    handle = os.open(guests, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, f"{name}\n".encode())
    finally:
        os.close(handle)
