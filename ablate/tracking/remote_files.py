"""Files in object stores and elsewhere (`s3://`, `gs://`, `https://`, ...), by fsspec: downloaded into the cache before
they are read, and uploaded when a run has ended. Nothing is trained across a network."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.config.errors import DataError, StoreError

_ACCEPTED = "Accepted: file, s3, gs, az, https and other kinds that fsspec opens by address."


def is_url(name: str) -> bool:
    """Return whether `name` is an address and not a path."""
    return "://" in name


def fetch_all(names: Sequence[str], cache: Path) -> list[str]:
    """Return `names` with each address, or glob of addresses, replaced by its files in the cache. Raises DataError."""
    paths: list[str] = []
    for name in names:
        paths += map(str, fetch(name, cache)) if is_url(name) else [name]
    return paths


def fetch(url: str, cache: Path) -> list[Path]:
    """Return the files at `url`, which may be a glob, in the cache, sorted by their addresses. A changed file is
    downloaded again. Raises DataError."""
    system, path = _open_url(url)
    with _explain_errors(url):
        names = sorted(system.glob(path)) if glob.has_magic(path) else [path]
        files = [name for name in names if system.isfile(name)]
        if not files and system.isdir(path):
            raise DataError(f"{url} is a folder. Name its files, for instance by a glob: {url.rstrip('/')}/*.jsonl")
    if not files:
        raise DataError(f"There is no file {url}")
    return [_fetch_once(system, url, {name: Path(name).name}, cache) / Path(name).name for name in files]


def fetch_checkpoint(url: str, name: str, cache: Path) -> Path:
    """Return the checkpoint at `url`, a file or a folder of shards, or the one called `name` in the folder `url`.

    Raises DataError.
    """
    system, path = _open_url(url)
    with _explain_errors(url):
        if system.isfile(path):
            return _fetch_once(system, url, {path: Path(path).name}, cache) / Path(path).name
        if not path.endswith(".ckpt"):
            path = f"{path.rstrip('/')}/{name}"
        if system.isfile(path):
            return _fetch_once(system, url, {path: name}, cache) / name
        shards = {file: f"{Path(path).name}/{file[len(path.rstrip('/')) + 1 :]}" for file in system.find(path)}
    if not shards:
        raise DataError(f"There is no checkpoint at {url}")
    return _fetch_once(system, url, shards, cache) / Path(path).name


def copy(files: Mapping[str, Path], url: str) -> None:
    """Write `files` by their names below the folder `url`, folders with all that is in them. Checksums are written
    last: if they exist, the folder is complete. Raises StoreError."""
    try:
        system, path = _open_url(url)
        for name, source in files.items():
            inner = [p for p in source.rglob("*") if p.is_file()] if source.is_dir() else [source]
            for file in sorted(inner, key=lambda p: (p.name.startswith("sums-"), p)):
                target = f"{path.rstrip('/')}/{name}" + (f"/{file.relative_to(source)}" if file != source else "")
                system.makedirs(target.rpartition("/")[0], exist_ok=True)
                system.put_file(str(file), target)
    except Exception as error:  # each file system has errors of its own
        raise StoreError(f"Nothing can be copied to {url}: {_explain(error)}") from None


def check_url(url: str) -> None:
    """Raise DataError for a `url` of an unknown kind, and if the package for it is not installed."""
    _open_url(url)


# ---------------------------------------------------------------------------------------------------- fsspec


def _open_url(url: str) -> tuple[Any, str]:
    """Return fsspec's file system and the path on it. Raises DataError."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:  # says which package to install
        raise DataError(f"{url} cannot be reached: {error}") from None
    except ValueError:
        raise DataError(f"{url} is of an unknown kind. {_ACCEPTED}") from None
    except Exception as error:  # each file system has errors of its own; some ask their server at once
        raise DataError(f"{url} cannot be reached: {_explain(error)}. {_ACCEPTED}") from None
    return system, path


@contextlib.contextmanager
def _explain_errors(url: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # each file system has errors of its own
        raise DataError(f"{url} cannot be read: {_explain(error)}") from None


def _explain(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def _fetch_once(system: Any, url: str, files: Mapping[str, str], cache: Path) -> Path:
    """Return the folder of the cache with `files` (path there -> name here), fetched unless it has them unchanged."""
    from filelock import FileLock

    with _explain_errors(url):
        stamps = [f"{system.unstrip_protocol(name)} {system.ukey(name)} {system.size(name)}" for name in sorted(files)]
        folder = cache / "remote" / hashlib.sha256("\n".join(stamps).encode()).hexdigest()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                part = folder.with_suffix(".part")
                for path, name in files.items():
                    (part / name).parent.mkdir(parents=True, exist_ok=True)
                    system.get_file(path, str(part / name))
                os.replace(part, folder)
    return folder
