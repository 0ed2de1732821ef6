"""`publish`: a study as a folder of small texts and figures, from which anybody can check it and run it again."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ablate.config import plugins
from ablate.config.errors import StoreError, SweepError
from ablate.data import data_kinds
from ablate.data.files import hash_file
from ablate.ledger import bundles, page
from ablate.ledger.over_sizes import OverSizes, compare_sizes
from ablate.ledger.places import find_places, hide_places
from ablate.ledger.records import list_sections, publish_record
from ablate.ledger.runs import Surroundings
from ablate.ledger.schema import FILE, Bundle, CorpusSource, PublishedSweep, Totals
from ablate.ledger.studies import Study, find_study
from ablate.plots.panels import save_png
from ablate.reports.figures import draw_figures
from ablate.reports.findings import list_unfinished
from ablate.reports.layer_seeds import compare_layers
from ablate.reports.layers_section import CAPTION, draw_layers_over_seeds
from ablate.sweeps.records import SweepRecord

SWEEP, PAGE, NOTES = "sweep.yaml", "index.md", "notes.md"
"""The sweep file; the page; and words of the author, which stand at its top."""
_KEPT = (NOTES, "reproductions")
"""What stays when a bundle is written anew."""


@dataclass(frozen=True)
class Published:
    """What was written."""

    folder: Path
    bundle: Bundle
    not_run: list[str]
    """Sweeps of the file that are not in it."""
    unfinished: list[str]
    """Sweeps of it that have open runs."""


def publish(names: Sequence[str], folder: str | Path, *, storage: str | None = None) -> Published:
    """Write the bundle of a study into `folder`, or write an earlier bundle there anew.

    Args:
        names: a sweep file with all of its sizes or stages that were run, or the names of sweeps.
        folder: is created; one that has other files is refused.
        storage: of the sweeps.

    Raises SweepError for an unknown sweep, one without a run that has ended, and a plugin that was changed since; and
    StoreError if the folder cannot be written.
    """
    folder = Path(folder)
    study = find_study(names, storage)
    _check_folder(folder)
    with tempfile.TemporaryDirectory() as temporary:
        content = Path(temporary)
        bundle = _write(study, content)
        try:
            _replace(folder, content)
        except OSError as error:
            text = f"The bundle cannot be written to {folder}: {error.strerror or error}. Choose another folder."
            raise StoreError(text) from None
    unfinished = [record.title for record in study.records.values() if list_unfinished(record)]
    return Published(folder, bundle, study.not_run, unfinished)


def _check_folder(folder: Path) -> None:
    """Raise StoreError for a folder that has something else in it."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file. Give a folder: -o FOLDER.")
    if folder.is_dir() and not (folder / FILE).exists() and any(file.name != NOTES for file in folder.iterdir()):
        raise StoreError(f"{folder} has other files in it. Give an empty or a new folder: -o FOLDER.")


def _write(study: Study, content: Path) -> Bundle:
    """Write all files of the bundle into the empty folder `content`."""
    copies = _copy_plugins(study.records.values(), content)
    surroundings = Surroundings()
    sweeps = [
        publish_record(record, size if len(study.records) > 1 else None, surroundings)
        for size, record in study.records.items()
    ]
    text = study.file.read_text(encoding="utf-8") if study.file else ""
    values: dict[str, Any] = {
        "name": study.name,
        "question": page.find_question(text),
        "surroundings": surroundings.known,
        "corpora": [corpus.model_dump(mode="json") for corpus in _list_corpora(sweeps, surroundings.known)],
        "plugins": {name: hash_file(content / name) for name in copies.values()},
        "totals": _sum_runs(sweeps).model_dump(mode="json"),
        "sweeps": [sweep.model_dump(mode="json") for sweep in sweeps],
        "over_sizes": None,
        "files": {},
    }
    values = hide_places(bundles.rename_plugins(values, copies))
    _write_sweep_files(study, text, values["sweeps"], content)
    bundle = Bundle.model_validate_json(json.dumps(values))
    records = bundles.restore_records(bundle, content, trusts_plugins=True)
    together = compare_sizes(bundle.name, records) if len(records) > 1 else None
    captions = _draw(records, together, content)
    written = [path for path in sorted(content.iterdir()) if path.is_file()]
    over_sizes = {"kind": together.kind, **together.values} if together else None
    bundle = bundle.model_copy(
        update={"over_sizes": over_sizes, "files": {path.name: hash_file(path) for path in written}}
    )
    bundle = bundle.model_copy(update={"digest": bundles.compute_digest(bundles.dump_bundle(bundle))})
    (content / FILE).write_text(bundles.to_json(bundle), encoding="utf-8")
    sections = [
        replace(section, title=f"{size}: {section.title}") if len(records) > 1 else section
        for size, record in records.items()
        for section in list_sections(record)
    ]
    (content / PAGE).write_text(page.render(bundle, together, captions, sections), encoding="utf-8")
    _refuse_places(content)
    return bundle


def _copy_plugins(records: Iterable[SweepRecord], content: Path) -> dict[str, str]:
    """Copy the plugins of the sweeps, and return their names there -> in the bundle. Raises SweepError for one that was
    changed since it was run."""
    copies: dict[str, str] = {}
    for record in records:
        for file, digest in record.plugins.items():
            text = plugins.load([file])[file].text
            if bundles.hash_text(text) != digest:
                raise SweepError(
                    f"The plugin {file} was changed since {record.title} was run with it, so the bundle could not be "
                    "run again. Put back the file with which it was run."
                )
            copies[file] = f"plugins/{Path(file).name}"
            (content / "plugins").mkdir(exist_ok=True)
            (content / copies[file]).write_text(text, encoding="utf-8")
    if len(set(copies.values())) < len(copies):
        raise SweepError(f"Two plugins have the same file name: {', '.join(copies)}. Rename one, and run again.")
    return copies


def _list_corpora(sweeps: Iterable[PublishedSweep], surroundings: Sequence[Mapping[str, str]]) -> list[CorpusSource]:
    """Return each corpus that runs were trained on."""
    corpora: dict[str, CorpusSource] = {}
    for sweep in sweeps:
        for arm in sweep.arms.values():
            settings = {**sweep.settings, **arm.settings}
            data = {path.removeprefix("data."): v for path, v in settings.items() if path.startswith("data.")}
            kind = data_kinds.kind_of(data)
            source = (kind.__doc__ or "").partition("\n\n")[0] if kind else ""
            for run in (*arm.search, *arm.fresh):
                if fingerprint := surroundings[run.surroundings].get("ablate.corpus"):
                    known = CorpusSource(fingerprint=fingerprint, settings=data, source=" ".join(source.split()))
                    corpora.setdefault(fingerprint, known)
    return list(corpora.values())


def _sum_runs(sweeps: Iterable[PublishedSweep]) -> Totals:
    runs = [run for sweep in sweeps for run in sweep.list_runs()]
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
        (content / name).write_text(head + yaml.safe_dump(sweep["spec"], sort_keys=False), encoding="utf-8")


def _draw(records: Mapping[str, SweepRecord], together: OverSizes | None, content: Path) -> dict[str, str]:
    """Draw the figures of several sizes together and the layers of each or, where there are none, those of each sweep;
    return file -> caption."""
    captions: dict[str, str] = {}
    if together:
        figures = together.draw()
        for name, figure in figures.items():
            save_png(figure, content / name)
            captions[name] = ""
        for size, record in records.items():
            if layers := compare_layers(record):
                captions[f"{size}-layers-seeds.png"] = f"{size}: {CAPTION}"
                save_png(draw_layers_over_seeds(record, layers), content / f"{size}-layers-seeds.png")
        return captions
    for key, record in records.items():
        for path, caption in draw_figures(record, content).items():
            name = path.name if len(records) == 1 else f"{key}-{path.name}"
            path.rename(content / name)
            captions[name] = caption
    return captions


def _refuse_places(content: Path) -> None:
    """Raise SweepError where a text would publish a folder or a secret of this machine."""
    for file in sorted(content.rglob("*")):
        if file.suffix in (".json", ".yaml", ".py", ".md") and (places := find_places(file.read_text("utf-8"))):
            text = f"{file.name} would publish {', '.join(places)}. Remove it there; nothing was written."
            raise SweepError(text)


def _replace(folder: Path, content: Path) -> None:
    """Put what was written in the place of an earlier bundle, whose notes and checks stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.name not in _KEPT:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    shutil.copytree(content, folder, dirs_exist_ok=True)
    if (notes := folder / NOTES).exists():
        file = folder / PAGE
        file.write_text(page.add_notes(file.read_text("utf-8"), notes.read_text("utf-8")), encoding="utf-8")
