"""The study that a name stands for: the sweeps of a file that were run, here or as published before, and the file."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ablate.addons.bundles import files
from ablate.addons.bundles.schema import FILE, NOTES, PAGE
from ablate.config.errors import ConfigError, DataError, SweepError
from ablate.config.formatting import join_words
from ablate.config.yaml import read_yaml
from ablate.reports.downstream import add_scores
from ablate.scheduler.preparation import list_differences
from ablate.scheduler.storage import list_sweeps, read_sweep, storage_url
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.fields import count_others
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.library import find_sweep_file, list_parts
from ablate.sweeps.spec.sweep import Sweep


@dataclass(frozen=True)
class Study:
    """Sweeps that are published together."""

    name: str
    records: dict[str, SweepRecord]
    """Size, or name of a sweep -> its record, in the order in which they run."""
    source: Path | None = None
    """The sweep file, if one was named."""
    planned: dict[str, Sweep] = field(default_factory=dict)
    """The same names -> each sweep of the file."""
    kept: list[str] = field(default_factory=list)
    """Names of records that are from an earlier bundle."""

    @property
    def file(self) -> Path | None:
        """The sweep file, if it is what was run."""
        return None if any(map(self.list_changes, self.records)) else self.source

    @property
    def not_run(self) -> list[str]:
        """Sweeps of the file that are not among the records."""
        return [spec.name for name, spec in self.planned.items() if name not in self.records]

    def list_changes(self, name: str) -> list[str]:
        """Return the settings in which a record differs from the file."""
        record = self.records[name]
        return list_differences(record.spec, self.planned[name]) if self.planned and not record.spec.taken_over else []


def keep_published(study: Study, folder: Path) -> Study:
    """Return the study with those sweeps of its file that the storage does not have and the bundle in `folder` has: a
    study may be run on several machines, one size after another.

    Raises DataError for a bundle that is damaged, and SweepError for one of other settings or with plugins.
    """
    lacking = [name for name in study.planned if name not in study.records]
    if not lacking or not os.path.isfile(folder / FILE):
        return study
    bundle = files.read_bundle(folder)
    known = {sweep.name for sweep in bundle.sweeps}
    shared = [name for name in lacking if study.planned[name].name in known]
    if bundle.name != study.name or not shared:
        return study
    elsewhere = "Choose another folder: -o FOLDER."
    if damage := files.list_damage(folder, free=(PAGE, NOTES)):
        raise DataError(f"The earlier bundle in {folder} is damaged: {damage[0]}. {elsewhere}")
    if bundle.plugins:
        raise SweepError(
            f"The earlier bundle in {folder} has {join_words(shared)}, which this storage does not have, and plugins, "
            f"with which it cannot be joined. {elsewhere}"
        )
    restored = {record.name: record for record in files.restore_records(bundle, folder).values()}
    kept = {name: _share_error(restored[study.planned[name].name], study.planned[name].family) for name in shared}
    records = {**study.records, **kept}
    joined = replace(study, records={name: records[name] for name in study.planned if name in records}, kept=shared)
    for name in shared:
        if changes := joined.list_changes(name):
            raise SweepError(
                f"The earlier bundle in {folder} has {name}, which this storage does not have, with other settings "
                f"than {study.source} ({changes[0]}). {elsewhere}"
            )
    return joined


def find_study(names: Sequence[str], storage: str | None = None) -> Study:
    """Return the study of a sweep file, of one that comes with Ablate, or of the names of sweeps that were run. Raises
    SweepError where there is no such sweep."""
    if len(names) == 1 and (file := _find_file(names[0])):
        return _read_file(file, storage)
    records = [add_scores(read_sweep(name, storage)) for name in names]
    others = count_others([record.spec for record in records])
    records = [_share_error(record, count) for record, count in zip(records, others, strict=True)]
    stem = _find_stem([record.name for record in records]) if len(records) > 1 else ""
    keys = [record.name.removeprefix(f"{stem}-") if stem else record.name for record in records]
    return Study(stem or records[0].name, dict(zip(keys, records, strict=True)))


def _share_error(record: SweepRecord, others: int | None) -> SweepRecord:
    """Return the record with the number of comparisons that the rest of the study has now, as they share the error of
    its verdict: sizes may have been added since it was run."""
    return replace(record, spec=record.spec.share_with(others))


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
    planned = {spec.name.removeprefix(f"{name}-") if list_parts(tree) else spec.name: spec for spec in specs}
    records = {
        key: _share_error(add_scores(read_sweep(spec.name, storage)), spec.family)
        for key, spec in planned.items()
        if spec.name in run
    }
    if not records:
        raise SweepError(f"Nothing of {file} was run: there is no sweep {specs[0].name!r}. Run it: ablate sweep {file}")
    return Study(name, records, file, planned)
