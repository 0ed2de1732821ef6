"""`publish`: a study as a folder of small texts and figures, from which anybody can check it and run it again."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.addons.ledger import bundles, claims, page
from ablate.addons.ledger.folders import check_folder, copy_notes, fill_folder, replace_folder
from ablate.addons.ledger.places import hide_places
from ablate.addons.ledger.records import publish_record
from ablate.addons.ledger.runs import PUBLISHED, Shared
from ablate.addons.ledger.schema import NOTES, PAGE, SWEEP, Bundle, CorpusSource, PublishedSweep, Totals
from ablate.addons.ledger.studies import Study, find_study, keep_published
from ablate.config import plugins
from ablate.config.errors import DataError, SweepError
from ablate.config.yaml import dump_yaml
from ablate.data import data_kinds
from ablate.data.files import hash_file
from ablate.reports.findings import list_unfinished
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH, SEARCH


@dataclass(frozen=True)
class Published:
    """What was written."""

    folder: Path
    bundle: Bundle
    not_run: list[str]
    """Sweeps of the file that are not in it."""
    unfinished: list[str]
    """Sweeps of it that have open runs."""
    kept: list[str]
    """Sizes of it that are from the earlier bundle in the folder."""


def publish(names: Sequence[str], folder: str | Path, *, storage: str | None = None) -> Published:
    """Write the bundle of a study into `folder`, or write an earlier bundle there anew: sizes of the same sweep file
    that it has and the storage has not are kept.

    Args:
        names: a sweep file with all of its sizes or stages that were run, or the names of sweeps.
        folder: is created; one that has other files is refused.
        storage: of the sweeps.

    Raises SweepError for an unknown sweep, one without a run that has ended, a plugin that was changed since and sizes
    of other settings in the folder; DataError if that bundle is damaged; and StoreError if the folder cannot be
    written.
    """
    folder = Path(folder)
    check_folder(folder)
    study = keep_published(find_study(names, storage), folder)
    with tempfile.TemporaryDirectory() as temporary:
        content = Path(temporary)
        copy_notes(folder, content)
        bundle = _write(study, content)
        replace_folder(folder, content)
    unfinished = [record.title for record in study.records.values() if list_unfinished(record)]
    return Published(folder, bundle, study.not_run, unfinished, study.kept)


def publish_anew(folder: str | Path, output: str | Path | None = None, *, trusts_plugins: bool = False) -> Published:
    """Write the figures and the page of a bundle anew, from its runs: after its notes were changed, or with the figures
    of a later version of Ablate.

    Args:
        folder: the bundle.
        output: another folder, for a copy without its checks; notes that are there stay.
        trusts_plugins: whether the bundle's plugins may be run.

    Raises DataError for what is no bundle, is damaged, or claims what its runs do not show by the rules of this version
    of Ablate; and StoreError if the folder cannot be written.
    """
    folder, output = Path(folder), Path(output or folder)
    check_folder(output)
    bundle = bundles.read_bundle(folder)
    damage = bundles.list_damage(folder, free=(PAGE, NOTES))
    with bundles.refuse_misfits(folder):
        damage = damage or claims.check_verdicts(bundle, bundles.restore_records(bundle, folder, trusts_plugins))
    if damage:
        raise DataError(f"{folder} is damaged, and stays as it is: {damage[0]}. See all of it: ablate verify {folder}")
    with bundles.refuse_misfits(folder), tempfile.TemporaryDirectory() as temporary:
        content = Path(temporary)
        copy_notes(output if (output / NOTES).exists() else folder, content)
        for name in (*bundle.plugins, *(name for name in bundle.files if name.endswith(".yaml"))):
            (content / name).parent.mkdir(exist_ok=True)
            shutil.copy(folder / name, content / name)
        bundle = fill_folder(bundle, content)
        replace_folder(output, content)
    return Published(output, bundle, [], [], [])


def _write(study: Study, content: Path) -> Bundle:
    """Write all files of the bundle into the folder `content`, which has the notes."""
    if not any(run.status in PUBLISHED for record in study.records.values() for run in record.runs):
        raise SweepError(f"No run of {study.name} has ended, so there is nothing to publish. Run it first.")
    copies = _copy_plugins(study.records.values(), content)
    shared = Shared()
    sweeps = [
        publish_record(record, size if len(study.records) > 1 else None, shared)
        for size, record in study.records.items()
    ]
    text = study.file.read_text(encoding="utf-8") if study.file else ""
    values: dict[str, Any] = {
        "name": study.name,
        "question": page.find_question(text),
        "surroundings": shared.surroundings,
        "questions": shared.questions,
        "corpora": [corpus.model_dump(mode="json") for corpus in _list_corpora(sweeps, shared.surroundings)],
        "plugins": {name: hash_file(content / name) for name in copies.values()},
        "totals": _sum_runs(sweeps).model_dump(mode="json"),
        "sweeps": [sweep.model_dump(mode="json") for sweep in sweeps],
        "over_sizes": None,
        "files": {},
    }
    values = hide_places(bundles.rename_plugins(values, copies))
    _write_sweep_files(study, text, values["sweeps"], content)
    bundle = Bundle.model_validate_json(json.dumps(values))
    return fill_folder(bundle, content)


def _copy_plugins(records: Iterable[SweepRecord], folder: Path) -> dict[str, str]:
    """Copy the plugins of the sweeps, and return their names there -> in the bundle. Raises SweepError for one that was
    changed since it was run."""
    copies: dict[str, str] = {}
    for record in records:
        for file, digest in record.plugins.items():
            content = plugins.read_contents([file])[file]
            if hashlib.sha256(content).hexdigest() != digest:
                raise SweepError(
                    f"The plugin {file} was changed since {record.title} was run with it, so the bundle could not be "
                    "run again. Put back the file with which it was run."
                )
            copies[file] = f"plugins/{Path(file).name}"
            (folder / "plugins").mkdir(exist_ok=True)
            (folder / copies[file]).write_bytes(content)
    if len(set(copies.values())) < len(copies):
        raise SweepError(f"Two plugins have the same file name: {', '.join(copies)}. Rename one, and run again.")
    return copies


def _list_corpora(sweeps: Iterable[PublishedSweep], surroundings: Sequence[Mapping[str, str]]) -> list[CorpusSource]:
    """Return each corpus that runs were trained on."""
    corpora: dict[str, CorpusSource] = {}
    for sweep in sweeps:
        for name, arm in sweep.arms.items():
            settings = {**sweep.settings, **arm.settings}
            data = {path.removeprefix("data."): v for path, v in settings.items() if path.startswith("data.")}
            kind = data_kinds.kind_of(data)
            source = (kind.__doc__ or "").partition("\n\n")[0] if kind else ""
            for run in sweep.runs:
                if run.arm != name or run.stage not in (SEARCH, FRESH):
                    continue
                if fingerprint := surroundings[run.surroundings].get("ablate.corpus"):
                    known = CorpusSource(fingerprint=fingerprint, settings=data, source=" ".join(source.split()))
                    corpora.setdefault(fingerprint, known)
    return list(corpora.values())


def _sum_runs(sweeps: Iterable[PublishedSweep]) -> Totals:
    runs = [run for sweep in sweeps for run in sweep.runs]
    return Totals(
        runs=len(runs),
        items=sum(run.items for run in runs),
        seconds=round(sum(run.seconds or 0.0 for run in runs), 1),
    )


def _write_sweep_files(study: Study, text: str, sweeps: Sequence[Mapping[str, Any]], content: Path) -> None:
    """Write the sweep file as it is or, where it is not what was run, what was."""
    if text:
        (content / SWEEP).write_text("\n".join(hide_places(text.split("\n"))), encoding="utf-8")
        return
    for sweep in sweeps:
        name = SWEEP if len(sweeps) == 1 else f"{sweep['name']}.yaml"
        head = f"# {sweep['name']}, as it was run: the settings of its file and of the command line.\n"
        (content / name).write_text(head + dump_yaml(sweep["spec"]), encoding="utf-8")
