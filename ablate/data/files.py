"""Files given by the user: expanding names, finding and hashing files."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ablate.config.errors import DataError, did_you_mean


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
    """Return a key that is the same for all names of one file, links included; for a file that cannot be read its
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
            kind = _KINDS.get(stat.S_IFMT(facts.st_mode), "no file")
            raise DataError(f"{path} is {kind}, and data must be in files, which can be read more than once.")
        result.append((str(path), facts.st_size, facts.st_mtime_ns))
    return result


_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, hexadecimal. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
