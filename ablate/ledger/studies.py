"""The study that a name stands for: the sweeps of a file that were run, and the file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ablate.config.errors import ConfigError, SweepError
from ablate.config.yaml import read_yaml
from ablate.sweeps.preparation import list_differences
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.library import find_sweep_file, list_parts
from ablate.sweeps.storage import list_sweeps, read_sweep, storage_url


@dataclass(frozen=True)
class Study:
    """Sweeps that are published together."""

    name: str
    records: dict[str, SweepRecord]
    """Size, or name of a sweep -> its record, in the order in which they run."""
    file: Path | None
    """The sweep file, if it is what was run."""
    not_run: list[str]
    """Sweeps of the file that the storage does not have."""


def find_study(names: Sequence[str], storage: str | None = None) -> Study:
    """Return the study of a sweep file, of one that comes with Ablate, or of the names of sweeps that were run. Raises
    SweepError where there is no such sweep."""
    if len(names) == 1 and (file := _find_file(names[0])):
        return _read_file(file, storage)
    records = [read_sweep(name, storage) for name in names]
    stem = _find_stem([record.name for record in records]) if len(records) > 1 else ""
    keys = [record.name.removeprefix(f"{stem}-") if stem else record.name for record in records]
    return Study(stem or records[0].name, dict(zip(keys, records, strict=True)), None, [])


def _find_stem(names: Sequence[str]) -> str:
    """Return the words that all names begin with: of NAME-SIZE the first."""
    columns = itertools.takewhile(
        lambda words: len(set(words)) == 1, zip(*(name.split("-") for name in names), strict=False)
    )
    return "-".join(words[0] for words in columns)


def _find_file(name: str) -> Path | None:
    try:
        file, part = find_sweep_file(name)
    except ConfigError:  # the name of a sweep that was run
        return None
    return None if part else file


def _read_file(file: Path, storage: str | None) -> Study:
    tree, specs = read_yaml(file), load_sweeps(file)
    name = str(tree["name"])
    run = list_sweeps(storage_url(storage))
    records = {
        spec.name.removeprefix(f"{name}-") if list_parts(tree) else spec.name: read_sweep(spec.name, storage)
        for spec in specs
        if spec.name in run
    }
    not_run = [spec.name for spec in specs if spec.name not in run]
    if not records:
        raise SweepError(f"Nothing of {file} was run: there is no sweep {specs[0].name!r}. Run it: ablate sweep {file}")
    named = {spec.name: spec for spec in specs}
    is_same = not any(
        list_differences(record.spec, named[record.name]) for record in records.values() if not record.spec.transfer
    )
    return Study(name, records, file if is_same else None, not_run)
