"""`publish`: a study as a folder of small texts and figures, from which anybody can check it and run it again. What
would name a place of this machine or a secret is removed, or refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ablate.addons.bundles import claims, files, page
from ablate.addons.bundles.records import PUBLISHED, Shared, publish_record
from ablate.addons.bundles.schema import FILE, NOTES, PAGE, SWEEP, Bundle, CorpusSource, PublishedSweep, Totals
from ablate.addons.bundles.studies import Study, find_study, keep_published
from ablate.addons.scaling.over_sizes import OverSizes, find_comparison
from ablate.config import plugins
from ablate.config.errors import DataError, StoreError, SweepError
from ablate.config.formatting import join_first
from ablate.config.yaml import dump_yaml
from ablate.data import data_kinds
from ablate.data.files import hash_file
from ablate.plots.drawing import save_png
from ablate.reports.findings import list_unfinished
from ablate.reports.layer_seeds import LAYERS
from ablate.reports.report_data import draw_figures
from ablate.scheduler.runners import fingerprint_settings
from ablate.sweeps.records import SETTING, SweepRecord
from ablate.sweeps.runs import FRESH, SEARCH
from ablate.tracking.databases import redact
from ablate.tracking.paths import store_path

_PATH = re.compile(r"(?<![\w.:/\\~-])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\:;,'\"()<>|]+){2,}[/\\]?")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL", re.IGNORECASE)  # in names of variables
_SHORTEST = 8  # letters of a secret that is looked for


def hide_places(value: Any) -> Any:
    """Return plain values without passwords, secrets of the environment, and folders: an absolute path is cut to its
    last part."""
    if isinstance(value, Mapping):
        return {hide_places(key): hide_places(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [hide_places(item) for item in value]
    if not isinstance(value, str):
        return value
    text = redact(value)
    for secret in sorted((own for name, own in os.environ.items() if _is_secret(name, own)), key=len, reverse=True):
        text = text.replace(secret, "***")
    return _PATH.sub(lambda match: re.split(r"[/\\]", match.group().rstrip("/\\"))[-1], text)


def find_places(text: str) -> list[str]:
    """Return the folders and secrets of this machine that a text contains, the secrets as the names of their
    variables."""
    folders = {str(folder) for folder in (Path.home(), Path.cwd(), store_path()) if len(folder.parts) > 2}
    secrets = {name for name, value in os.environ.items() if _is_secret(name, value) and value in text}
    return sorted(folder for folder in folders if folder in text) + sorted(secrets)


def _is_secret(name: str, value: str) -> bool:
    return len(value) >= _SHORTEST and bool(_SECRET.search(name))


COLOURS = 64
"""Colours in the palette of a figure."""


def check_folder(folder: Path) -> None:
    """Raise StoreError for a folder that has something else in it."""
    if os.path.exists(folder) and not folder.is_dir():
        raise StoreError(f"{folder} is a file. Give a folder: -o FOLDER.")
    if os.path.isdir(folder) and not (folder / FILE).exists() and any(file.name != NOTES for file in folder.iterdir()):
        raise StoreError(f"{folder} has other files in it. Give an empty or a new folder: -o FOLDER.")


def fill_folder(bundle: Bundle, content: Path) -> Bundle:
    """Draw the figures of a bundle and write its page and its values into `content`, which has its sweep files, plugins
    and notes; return the bundle with what its sizes show together and its digests. Raises SweepError for a text that
    names a place of this machine."""
    records = files.restore_records(bundle, content, trusts_plugins=True)
    together = find_comparison(bundle.name, records) if len(records) > 1 else None
    over_sizes = together.to_plain() if together else None
    figures = _draw(records, together, content)
    hashes = {path.name: hash_file(path) for path in sorted(content.iterdir()) if path.is_file()}
    bundle = bundle.model_copy(update={"over_sizes": over_sizes, "files": hashes})
    notes = (content / NOTES).read_text(encoding="utf-8") if (content / NOTES).exists() else ""
    (content / PAGE).write_text(page.render(bundle, records, together, figures, notes), encoding="utf-8")
    hashes = dict(sorted({**hashes, PAGE: hash_file(content / PAGE)}.items()))
    bundle = files.seal(bundle.model_copy(update={"files": hashes}))
    _refuse_places(content, bundle)
    files.write_bundle(bundle, content)
    return bundle


def _draw(records: Mapping[str, SweepRecord], together: OverSizes | None, content: Path) -> list[str]:
    """Draw the figure of the joint result of several sizes, or else of the verdict on each sweep, and that of the
    layers (of the largest size), if they were measured; return the files. All others can be drawn again from the
    runs."""
    from PIL import Image

    figures = together.draw()[:1] if together else []
    for key, record in records.items():
        drawn = draw_figures(record)
        layers = [figure for figure in drawn if figure.name == LAYERS]
        first = [figure for figure in drawn[:1] if not together and figure not in layers]
        own = [*first, *(layers if key == [*records][-1] else [])]
        figures += own if len(records) == 1 else [replace(one, name=f"{key}-{one.name}") for one in own]
    names = [save_png(figure, content).name for figure in figures]
    for name in names:
        with Image.open(content / name) as image:
            small = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        small.save(content / name, optimize=True)  # in a third of the bytes: a figure has few colours
    return names


def _refuse_places(content: Path, bundle: Bundle) -> None:
    """Raise SweepError where a text would publish a folder or a secret of this machine."""
    paths = [file for file in sorted(content.rglob("*")) if file.suffix in (".yaml", ".py", ".md")]
    texts = {file.name: file.read_text("utf-8") for file in paths} | {FILE: bundle.model_dump_json()}
    for name, text in texts.items():
        if places := find_places(text):
            raise SweepError(f"{name} would publish {', '.join(places)}. Remove it there; nothing was written.")


def copy_notes(folder: Path, content: Path) -> None:
    """Copy the author's notes of the bundle in `folder`, if there are any."""
    if (folder / NOTES).exists():
        shutil.copy(folder / NOTES, content / NOTES)


def replace_folder(folder: Path, content: Path) -> None:
    """Replace an earlier bundle by the written files; its notes stay. Raises StoreError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            if old.name != NOTES:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        content.chmod(folder.stat().st_mode)  # it is copied too, and a temporary folder is its owner's alone
        there = [NOTES] if (folder / NOTES).exists() else []
        shutil.copytree(content, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*there))
    except OSError as error:
        text = f"The bundle cannot be written to {folder}: {error.strerror or error}. Choose another folder."
        raise StoreError(text) from None


@dataclass(frozen=True)
class Published:
    """The written bundle."""

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
        output: another folder, for a copy; notes that are there stay.
        trusts_plugins: whether the bundle's plugins may be run.

    Raises DataError for what is no bundle, is damaged, or claims what its runs do not show by the rules of this version
    of Ablate; and StoreError if the folder cannot be written.
    """
    folder, output = Path(folder), Path(output or folder)
    check_folder(output)
    bundle = files.read_bundle(folder)
    damage = files.list_damage(folder, free=(PAGE, NOTES))
    with files.refuse_misfits(folder):
        damage = damage or claims.check_verdicts(bundle, files.restore_records(bundle, folder, trusts_plugins))
    if damage:
        raise DataError(f"{folder} is damaged, and stays as it is: {damage[0]}. See all of it: ablate verify {folder}")
    with files.refuse_misfits(folder), tempfile.TemporaryDirectory() as temporary:
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
    if others := [record.title for record in study.records.values() if not record.spec.is_own]:
        raise SweepError(
            f"{', '.join(others)} runs a program that is no part of Ablate: a bundle is there to be trained again by "
            "anybody, and would not contain it. Its report is in the store (ablate report), and in MLflow."
        )
    if not any(run.status in PUBLISHED for record in study.records.values() for run in record.runs):
        raise SweepError(f"No run of {study.name} has ended, so there is nothing to publish. Run it first.")
    copies = _copy_plugins(study.records.values(), content)
    _refuse_other_defaults(study)
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
    values = hide_places(files.rename_plugins(values, copies))
    _write_sweep_files(study, text, values["sweeps"], content)
    bundle = Bundle.model_validate_json(json.dumps(values))
    return fill_folder(bundle, content)


_NAMED = 5  # settings that a message names


def _refuse_other_defaults(study: Study) -> None:
    """Raise SweepError for a sweep that was run with other defaults: a bundle has all settings, as of now."""
    for name, record in study.records.items():
        now = fingerprint_settings(record.spec) if name not in study.kept else {}
        if changed := [key for key, value in now.items() if record.inputs.get(key, value) != value]:
            settings = join_first([key.removeprefix(SETTING) for key in changed], _NAMED)
            raise SweepError(
                f"{record.title} was run with other defaults than this version of Ablate has ({settings}), so the "
                "bundle would say what was not run. Publish it with the version that ran it: the tag "
                "mlflow.source.git.commit of its runs."
            )


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
    """Write the sweep file as it is or, if it is not what was run, the sweep that was."""
    if text:
        (content / SWEEP).write_text("\n".join(hide_places(text.split("\n"))), encoding="utf-8")
        return
    for sweep in sweeps:
        name = SWEEP if len(sweeps) == 1 else f"{sweep['name']}.yaml"
        head = f"# {sweep['name']}, as it was run: the settings of its file and of the command line.\n"
        (content / name).write_text(head + dump_yaml(sweep["spec"]), encoding="utf-8")
