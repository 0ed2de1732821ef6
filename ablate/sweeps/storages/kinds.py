"""The kind of storage that an address names. A kind's module imports Optuna, which takes a second, and is imported when
one is opened."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.config.extras import import_library
from ablate.tracking.databases import sqlite_file

if TYPE_CHECKING:
    from optuna.storages import BaseStorage


def open_address(url: str) -> BaseStorage:
    """Return Optuna's storage at `url`, created if missing. Raises StoreError if it cannot be used, AblateError if it
    needs a library that is not installed."""
    scheme = url.partition("://")[0]
    return _OPENERS.get(scheme, _open_database)(url)


def find_file(url: str) -> Path | None:
    """Return the file that is the storage at `url`; None for a server."""
    return _load("journal").journal_file(url) if url.startswith("journal://") else sqlite_file(url)


def find_kind(storage: BaseStorage) -> Any:
    """Return the storage without the cache that Optuna has before a database."""
    from optuna.storages._cached_storage import _CachedStorage

    return storage._backend if isinstance(storage, _CachedStorage) else storage


def _load(module: str) -> Any:
    """Return a module of this package."""
    return importlib.import_module(f"ablate.sweeps.storages.{module}")


def _open_database(url: str) -> BaseStorage:
    return _load("databases").open_database(url)


def _open_journal(url: str) -> BaseStorage:
    return _load("journal").open_journal(url)


def import_grpc() -> None:
    """Import the library of the proxy, which is to write nothing to standard error by itself. Raises AblateError if it
    is not installed."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import_library("grpc", "grpc")


def _open_proxied(url: str) -> BaseStorage:
    import_grpc()
    return _load("proxy").open_proxied(url)


_OPENERS: dict[str, Callable[[str], BaseStorage]] = {"journal": _open_journal, "grpc": _open_proxied}
"""Scheme of an address -> how it is opened; all others are SQLAlchemy's."""
