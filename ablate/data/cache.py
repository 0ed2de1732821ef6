"""The cache on disk: files that are written once, atomically and under a lock, and results that are valid until a file
changes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from filelock import FileLock

from ablate.config.errors import DataError
from ablate.config.formatting import join_first
from ablate.data.files import explain, hash_file, read_stamps


def fingerprint_files(paths: Sequence[Path], cache: Path) -> str:
    """Return the SHA-256 over the contents of the files in order, not over their names.

    Raises DataError for a file that cannot be read.
    """

    def compute() -> list[str]:
        digests = []
        for path in paths:
            try:
                digests.append(hash_file(path))
            except OSError as error:
                raise DataError(f"{path} cannot be read: {explain(error)}") from error
        return digests

    # Over the digests and not over the joined contents: where one file ends and the next begins matters too.
    return hashlib.sha256("".join(remember("contents", paths, cache, compute)).encode()).hexdigest()


def combine_fingerprints(fingerprints: Sequence[str]) -> str:
    """Return one SHA-256 for several; a single one is returned unchanged."""
    return fingerprints[0] if len(fingerprints) == 1 else hashlib.sha256("".join(fingerprints).encode()).hexdigest()


def remember(what: str, paths: Sequence[Path], cache: Path, compute: Callable[[], list[str]]) -> list[str]:
    """Return `compute()`, or its result from an earlier run if no file has changed since; `what` identifies the result.
    Raises DataError if a file changes meanwhile or `cache` cannot be written.
    """
    before = read_stamps(paths)
    key = hashlib.sha256(json.dumps([what, before]).encode()).hexdigest()
    note = cache / "fingerprints" / f"{key}.json"
    known = _read_note(note)
    if known is not None:
        return known
    with hold_lock(note):
        known = _read_note(note)
        if known is None:
            known = compute()
            if read_stamps(paths) != before:
                raise DataError(f"A file changed while it was read: one of {join_first(paths, 3)}")
            write_whole(note, json.dumps(known).encode())
    return known


def _read_note(note: Path) -> list[str] | None:
    try:
        known = json.loads(note.read_bytes())
    except (OSError, ValueError):
        return None
    return known if isinstance(known, list) and all(isinstance(entry, str) for entry in known) else None


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file in the cache, so that one process builds it and the others wait.

    Raises DataError if the cache cannot be written: an OSError from the body is reported in the same way.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = ". Free some space, or move the store to another disk and set ABLATE_STORE to its path" if full else ""
        raise DataError(f"The cache {path.parent} cannot be written: {explain(error)}{advice}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically, so that no process reads a part of it. Call it while holding the file's lock."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)
