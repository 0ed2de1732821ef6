"""Where the storages of sweeps are, what sweeps one holds, and reading one back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ablate.config.errors import SweepError, did_you_mean
from ablate.scheduler.storage_errors import explain_damage
from ablate.scheduler.storages.kinds import find_file, open_address
from ablate.scheduler.studies import Studies, list_studies, parse_study_name
from ablate.sweeps.records import SweepRecord, format_title
from ablate.tracking.databases import add_driver, file_exists, sqlite_url
from ablate.tracking.paths import store_path

if TYPE_CHECKING:
    from optuna.storages import BaseStorage


def storage_url(url: str | None = None) -> str:
    """Return `url`, else ABLATE_STORAGE, else the SQLite database of the store."""
    return add_driver(url or os.environ.get("ABLATE_STORAGE") or sqlite_url(store_path() / "optuna.db"))


def open_storage(url: str) -> BaseStorage:
    """Return Optuna's storage at `url`, created if missing. Raises StoreError if it cannot be used."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return open_address(add_driver(url))


def list_sweeps(url: str) -> dict[str, list[int]]:
    """Return the sweeps of the storage at `url`: name -> its generations, ascending. Creates nothing."""
    if (storage := open_existing(url)) is None:
        return {}
    with explain_damage(storage):
        return list_generations(storage)


def open_existing(url: str) -> BaseStorage | None:
    """Return the storage at `url`; None if it is a file that does not exist yet. Raises StoreError."""
    file = find_file(url)
    return None if file is not None and not file_exists(file) else open_storage(url)


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
        return _find_sweep(storage, title)


def _find_sweep(storage: BaseStorage | None, title: str) -> SweepRecord:
    name, _, wanted = title.partition("@")
    known = {} if storage is None else list_generations(storage)
    if storage is None or name not in known or (wanted and (not wanted.isdigit() or int(wanted) not in known[name])):
        names = [format_title(n, g) for n, gs in known.items() for g in gs]
        listed = f"Sweeps: {', '.join(names)}." if names else "There are none yet: run `ablate sweep FILE.yaml`."
        raise SweepError(f"There is no sweep {title!r}. {listed}{did_you_mean(title, names)}")
    return read_generation(storage, name, int(wanted) if wanted else known[name][-1])


def read_generation(storage: BaseStorage, name: str, generation: int) -> SweepRecord:
    """Return one generation of a sweep that exists in `storage`."""
    return Studies(storage, name, generation).read()
