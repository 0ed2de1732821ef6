"""Files given by the user, and what is remembered about them from one run to the next."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from ablate.config.errors import DataError, did_you_mean


def absolute(name: str | Path) -> Path:
    """`name` with `~` expanded, relative to the current directory."""
    return Path(os.path.abspath(os.path.expanduser(name)))


def reason(error: BaseException) -> str:
    """The message of an error, in one line: for an OSError what the system says, without the path."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def suggestion(path: Path) -> str:
    """' Did you mean X?' from the folder of a missing `path`, or that the folder is missing as well."""
    folder = path.parent
    if not os.path.isdir(folder):
        return f" The folder {folder} does not exist either."
    with contextlib.suppress(OSError):
        return did_you_mean(path.name, os.listdir(folder))
    return ""


def resolve(patterns: Sequence[str], readable: Callable[[Path], Any], accepted: str) -> list[Path]:
    """The files of all `patterns` in the order given, those of one glob sorted by name, each file once.

    Raises DataError for a pattern without a file, a folder, and a file that is not `readable` by its name; `accepted`
    says which names are.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        path = absolute(pattern)
        # os.path.isdir rather than Path.is_dir, which raises where a folder above may not be entered.
        if os.path.isdir(path):
            example = glob.escape(str(pattern)).rstrip("/") + "/**/*" + accepted.split(",")[0]
            raise DataError(f"{path} is a folder. Name its files, for instance by a glob: {example}")
        if os.path.exists(path):
            found[path] = None
            continue
        matches = sorted(match for match in glob.glob(str(path), recursive=True) if not os.path.isdir(match))
        if not matches:
            if glob.has_magic(str(path)):
                raise DataError(f"No file matches {path}")
            raise DataError(f"There is no file {path}.{suggestion(path)}")
        found.update(dict.fromkeys(map(Path, matches)))
    for path in found:
        if not readable(path):
            raise DataError(f"{path} has the unknown suffix {path.suffix!r}. Accepted: {accepted}.")
    return list(found)


def stamps(paths: Sequence[Path]) -> list[tuple[str, int, int]]:
    """(path, size, mtime in ns) of each file: what tells without reading that a file is unchanged."""
    result = []
    for path in paths:
        try:
            stat = path.stat()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {reason(error)}") from error
        result.append((str(path), stat.st_size, stat.st_mtime_ns))
    return result


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, hexadecimal. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def content_fingerprint(paths: Sequence[Path], cache: Path) -> str:
    """SHA-256 over the contents of the files in order, not over their names.

    Raises DataError for a file that cannot be read.
    """

    def compute() -> list[str]:
        digests = []
        for path in paths:
            try:
                digests.append(file_sha256(path))
            except OSError as error:
                raise DataError(f"{path} cannot be read: {reason(error)}") from error
        return digests

    # Over the digests and not over the joined contents: where one file ends and the next begins matters too.
    return hashlib.sha256("".join(remembered("contents", paths, cache, compute)).encode()).hexdigest()


def remembered(what: str, paths: Sequence[Path], cache: Path, compute: Callable[[], list[str]]) -> list[str]:
    """`compute()`, or what it gave in an earlier run if none of the files has changed since; `what` names the result.

    Raises DataError where a file changes meanwhile or `cache` cannot be written.
    """
    before = stamps(paths)
    key = hashlib.sha256(json.dumps([what, before]).encode()).hexdigest()
    note = cache / "fingerprints" / f"{key}.json"
    known = _recall(note)
    if known is not None:
        return known
    with locked(note):
        known = _recall(note)
        if known is None:
            known = compute()
            if stamps(paths) != before:
                raise DataError(f"A file changed while it was read: one of {_listed(paths)}")
            replace(note, json.dumps(known).encode())
    return known


def _recall(note: Path) -> list[str] | None:
    try:
        known = json.loads(note.read_bytes())
    except (OSError, ValueError):
        return None
    return known if isinstance(known, list) and all(isinstance(entry, str) for entry in known) else None


def _listed(paths: Sequence[Path], most: int = 3) -> str:
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(map(str, paths[:most])) + more


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a file in the cache, so that one process builds it and the others wait.

    Raises DataError where the cache cannot be written: an OSError from the body is taken to be about it too.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = ". Make room, or move the store to another disk and set ABLATE_STORE to it" if full else ""
        raise DataError(f"The cache {path.parent} cannot be written: {reason(error)}{advice}") from error


def replace(path: Path, content: bytes) -> None:
    """Writes a file in one step: nobody ever sees a part of it. To be called under its lock."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)
