"""The storage of sweeps: its address, its lock, its errors as sentences, the sweeps that it holds, and reading one.
Optuna is imported, which takes a second, when a storage is opened."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ablate.config.errors import AblateError, StoreError, SweepError, did_you_mean
from ablate.scheduler.studies import Studies, list_spent_seeds, list_studies, parse_study_name
from ablate.sweeps.records import SweepRecord, format_title
from ablate.tracking.databases import (
    LostConnectionError,
    add_driver,
    describe_failure,
    file_exists,
    redact,
    repeat_while_away,
    shorten,
    sqlite_file,
    sqlite_url,
)
from ablate.tracking.paths import store_path

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

T = TypeVar("T")
_MEND = "Replace it by a backup, or move it away to start from the beginning."


# ---------------------------------------------------------------------------------------------------- opening


def storage_url(url: str | None = None) -> str:
    """Return `url`, else ABLATE_STORAGE, else the SQLite database of the store."""
    return add_driver(url or os.environ.get("ABLATE_STORAGE") or sqlite_url(store_path() / "optuna.db"))


def open_storage(url: str) -> BaseStorage:
    """Return Optuna's storage at `url`, created if missing: a journal, or a database of SQLAlchemy's. Raises StoreError
    if it cannot be used."""
    from ablate.scheduler import optuna_storages

    url = add_driver(url)
    is_journal = url.startswith(optuna_storages.SCHEME)
    return optuna_storages.open_journal(url) if is_journal else optuna_storages.open_database(url)


def find_file(url: str) -> Path | None:
    """Return the file that is the storage at `url`; None for a server."""
    if url.startswith("journal://"):
        from ablate.scheduler.optuna_storages import journal_file

        return journal_file(url)
    return sqlite_file(url)


def open_existing(url: str) -> BaseStorage | None:
    """Return the storage at `url`; None if it is a file that does not exist yet. Raises StoreError."""
    file = find_file(url)
    return None if file is not None and not file_exists(file) else open_storage(url)


# ---------------------------------------------------------------------------------------------------- its lock


def do_locked(storage: BaseStorage, step: Callable[[], T]) -> T:
    """Return the result of `step`, called under the lock of `storage` (see `lock_storage`). If the server becomes
    unreachable meanwhile, wait for it, take the lock again and repeat `step` from its start, wherever it was
    interrupted."""
    from ablate.scheduler.optuna_private import DatabaseServer, find_backend

    def once() -> T:
        with lock_storage(storage):
            return step()

    kind = find_backend(storage)
    return repeat_while_away(once, kind.url) if isinstance(kind, DatabaseServer) else once()


@contextlib.contextmanager
def lock_storage(storage: BaseStorage) -> Iterator[None]:
    """Let one process at a time, over all machines that share `storage`, run this context, so that counts are still
    valid when a trial is requested. The lock is released when its process ends. Raises StoreError after two minutes of
    waiting. A storage in memory, which no other process sees, has no lock."""
    from ablate.scheduler.optuna_private import find_backend

    kind = find_backend(storage)
    with kind.hold_lock() if hasattr(kind, "hold_lock") else contextlib.nullcontext():
        yield


# ---------------------------------------------------------------------------------------------------- its errors


@contextlib.contextmanager
def explain_damage(storage: BaseStorage | None) -> Iterator[None]:
    """Raise errors of reading a storage as a StoreError: a damaged file fails in SQLite, or has unexpected content."""
    from ablate.scheduler.optuna_private import find_backend

    url = redact(getattr(find_backend(storage), "url", "in memory")) if storage else "in memory"
    try:
        with translate_storage_errors(url):
            yield
    except (MemoryError, AblateError):
        raise
    except Exception as error:
        text = shorten(error).rstrip(".") or type(error).__name__
        raise StoreError(f"The Optuna storage {url} is damaged: its content is not valid ({text}). {_MEND}") from None


@contextlib.contextmanager
def translate_storage_errors(url: str) -> Iterator[None]:
    """Raise errors of a storage during a sweep as a StoreError that says what to do."""
    import optuna
    import sqlalchemy.exc

    try:
        yield
    except (
        optuna.exceptions.StorageInternalError,
        sqlalchemy.exc.SQLAlchemyError,
        sqlite3.Error,
        LostConnectionError,
    ) as error:
        text = describe_failure(error)
        what = "Finished trials are safe; run the same command again once it answers."
        if "malformed" in text or "not a database" in text:
            what = f"The file is damaged. {_MEND}"
        elif "full" in text:
            what = "Free some space. Finished trials are safe, and the same command continues."
        raise StoreError(f"The Optuna storage {redact(url)} failed: {text} {what}") from None


# ---------------------------------------------------------------------------------------------------- its sweeps


def list_sweeps(url: str) -> dict[str, list[int]]:
    """Return the sweeps of the storage at `url`: name -> its generations, ascending. Creates nothing."""
    if (storage := open_existing(url)) is None:
        return {}
    with explain_damage(storage):
        return list_generations(storage)


def list_spent(url: str) -> dict[str, dict[str, list[int]]]:
    """Return sweep, as NAME@GENERATION -> the seeds that it has tuned, chosen and tested on, of the storage at `url`.
    Creates nothing."""
    if (storage := open_existing(url)) is None:
        return {}
    with explain_damage(storage):
        return list_spent_seeds(storage)


def list_generations(storage: BaseStorage) -> dict[str, list[int]]:
    """Return the sweeps of a storage: name -> its generations, ascending."""
    generations: dict[str, set[int]] = {}
    for study in list_studies(storage):
        if parsed := parse_study_name(study):
            generations.setdefault(parsed[0], set()).add(parsed[1])
    return {name: sorted(numbers) for name, numbers in sorted(generations.items())}


def read_sweep(title: str, url: str | None = None) -> SweepRecord:
    """Return the sweep `title` (NAME, or NAME@GENERATION; by default the latest). Raises SweepError for an unknown one,
    with the existing names.
    """
    if not isinstance(title, str):
        raise TypeError(f"give the name of a sweep, such as 'demo', not a {type(title).__name__}")
    return read_sweep_from(open_existing(storage_url(url)), title)


def read_sweep_from(storage: BaseStorage | None, title: str) -> SweepRecord:
    """Return `read_sweep` for an open storage; None: there is none yet."""
    with explain_damage(storage):
        name, _, wanted = title.partition("@")
        known = {} if storage is None else list_generations(storage)
        if (
            storage is None
            or name not in known
            or (wanted and (not wanted.isdigit() or int(wanted) not in known[name]))
        ):
            names = [format_title(n, g) for n, gs in known.items() for g in gs]
            listed = f"Sweeps: {', '.join(names)}." if names else "There are none yet: run `ablate sweep FILE.yaml`."
            raise SweepError(f"There is no sweep {title!r}. {listed}{did_you_mean(title, names)}")
        return read_generation(storage, name, int(wanted) if wanted else known[name][-1])


def read_generation(storage: BaseStorage, name: str, generation: int) -> SweepRecord:
    """Return one generation of a sweep that exists in `storage`."""
    return Studies(storage, name, generation).read()
