"""Files given by the user: expanding names, finding and hashing files. Files of the cache: written once, atomically and
under a lock, and results that are valid until a file changes."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from ablate.config.errors import DataError, did_you_mean
from ablate.config.formatting import join_first


def expand_path(name: str | Path) -> Path:
    """Return `name` with `~` expanded, relative to the current directory."""
    return Path(os.path.abspath(os.path.expanduser(name)))


def identify_files(path: str) -> str:
    """Return a path with the sizes and modification times of its files; any other value unchanged."""
    place = Path(path).expanduser()
    files = sorted(place.rglob("*")) if os.path.isdir(place) else [place] if os.path.isfile(place) else []
    stats = [(file.name, facts.st_size, facts.st_mtime_ns) for file in files if (facts := file.stat())]
    return f"{path} {stats}"


def identify_file(path: Path) -> object:
    """Return a key that is the same for all names of one file, links included; for a file that cannot be read, its
    name."""
    try:
        facts = os.stat(path)
    except OSError:
        try:
            facts = os.stat(os.path.realpath(path))  # of a name that goes around in links more often than is allowed
        except OSError:
            return path
    return facts.st_dev, facts.st_ino


def explain(error: BaseException) -> str:
    """Return the message of an error in one line: for an OSError the system's message, without the path."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def suggest_name(path: Path) -> str:
    """Return ' Did you mean X?' with the closest name in the folder of a missing `path`, or a note that the folder is
    missing too."""
    folder = path.parent
    if not os.path.isdir(folder):
        return f" The folder {folder} does not exist either."
    with contextlib.suppress(OSError):
        return did_you_mean(path.name, os.listdir(folder))
    return ""


def find_files(patterns: Sequence[str], readable: Callable[[Path], Any], accepted: str) -> list[Path]:
    """Return the files of all `patterns` in their order, the files of one glob sorted by name, each file once, also
    where links give it several names. Raises DataError for a pattern without a file, a folder, a pipe or device, and a
    file whose name is not `readable`; `accepted` describes the accepted names.
    """
    paths: list[Path] = []
    for pattern in patterns:
        path = expand_path(pattern)
        # os.path.isdir rather than Path.is_dir, which raises where a folder above may not be entered.
        if os.path.isdir(path):
            example = glob.escape(str(pattern)).rstrip("/") + "/**/*" + accepted.split(",")[0]
            raise DataError(f"{path} is a folder. Name its files, for instance by a glob: {example}")
        if os.path.exists(path):
            paths.append(path)
            continue
        matches = sorted(match for match in glob.glob(str(path), recursive=True) if not os.path.isdir(match))
        if not matches:
            if glob.has_magic(str(path)):
                raise DataError(f"No file matches {path}")
            raise DataError(f"There is no file {path}.{suggest_name(path)}")
        paths += map(Path, matches)
    for path in paths:
        if not readable(path):
            raise DataError(f"{path} has the unknown suffix {path.suffix!r}. Accepted: {accepted}.")
    keys = [identify_file(path) for path in paths]
    names: dict[object, Path] = {}
    for key, path in zip(keys, paths, strict=True):
        names[key] = min(names.get(key, path), path, key=lambda name: len(name.parts))
    files = list(dict.fromkeys(path for key, path in zip(keys, paths, strict=True) if names[key] == path))
    read_stamps(files)
    return files


def read_stamps(paths: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Return (path, size, mtime in ns) of each file, which show whether a file has changed without reading it. Raises
    DataError for what cannot be read, or not more than once: a pipe, a device, a socket."""
    result = []
    for path in paths:
        try:
            facts = path.stat()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {explain(error)}") from error
        if not stat.S_ISREG(facts.st_mode):
            raise DataError(f"{path} is no regular file, and data must be in files, which can be read more than once.")
        result.append((str(path), facts.st_size, facts.st_mtime_ns))
    return result


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, hexadecimal. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


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
