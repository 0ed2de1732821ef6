"""Locks of files, which the operating system releases when their process ends, and the file systems that have none."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ablate.config.errors import StoreError
from ablate.tracking.databases import LOCKED

_POLL = 0.003  # seconds between two tries to take a lock: who looks seldom hardly gets one that many want
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
