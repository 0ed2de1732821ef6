"""The location of results: the folder of the store, and the address of MLflow's database or server."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from ablate.config.errors import StoreError
from ablate.tracking.databases import add_driver, file_exists, redact, sqlite_file, sqlite_url
from ablate.tracking.remote_files import is_url


def store_path() -> Path:
    """Return the folder of all results: `mlruns/` in the current folder, or ABLATE_STORE. It may be missing."""
    folder = os.environ.get("ABLATE_STORE", "mlruns")
    if is_url(folder):
        raise StoreError(
            f"ABLATE_STORE is {redact(folder)}, and must be a folder: runs lock, append and move files there. Data and "
            "checkpoints for warm starts can be read from addresses; trainer.copy_to copies finished runs to one."
        )
    return Path(folder).absolute()


def open_store() -> Path:
    """Return the folder of all results, created for this user alone if missing. Raises StoreError if it cannot be
    written to."""
    folder = store_path()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / f".write-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StoreError(
            f"Results cannot be written to {folder}: {error.strerror or error}. "
            "Run from a folder that you may write to, or set ABLATE_STORE to one."
        ) from None
    return folder


def open_folder(name: str) -> Path:
    """Return a folder of the store, created if missing. Raises StoreError if it cannot be created."""
    folder = open_store() / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"The folder {folder} cannot be created: {error.strerror or error}.") from None
    return folder


def cache_folder(name: str = "cache") -> Path:
    """Return a folder for data that can be made again, `cache/` of the store for prepared data; beside a store that can
    only be read, a temporary one."""
    if store_path().is_dir() and not os.access(store_path(), os.W_OK):
        return Path(_make_temporary().name)
    return open_folder(name)


@cache
def _make_temporary() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="ablate-cache-")  # removed when this process ends


def tracking_uri() -> str:
    """Return MLFLOW_TRACKING_URI, or the address of the SQLite database of the store."""
    address = os.environ.get("MLFLOW_TRACKING_URI")
    return add_driver(address, "the MLflow store") if address else sqlite_url(store_path() / "mlflow.db")


def store_exists() -> bool:
    """Return whether there is a store to read from: a server, or an existing database."""
    return is_remote() or not (file := sqlite_file(tracking_uri())) or file_exists(file)


def is_remote() -> bool:
    """Return whether the store is a server, which may be temporarily unreachable."""
    return tracking_uri().startswith("http")
