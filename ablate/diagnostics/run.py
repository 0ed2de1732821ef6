"""`diagnose`: take measurements on the layers of models, as tables and figures on one scale."""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.config import plugins
from ablate.config.errors import AblateError, StoreError
from ablate.diagnostics import coordinates
from ablate.diagnostics.coordinates.check import CheckSettings, Coordinates, check_coordinates, draw
from ablate.diagnostics.coordinates.recipes import is_recipe_file, open_recipes
from ablate.diagnostics.measures import Metric, Pruning, Result, measurements, select
from ablate.diagnostics.measures.base import FOLDER, MEASURED
from ablate.diagnostics.measuring import TOKENS, MetricSource, Settings, join_notes, measure_model
from ablate.diagnostics.opening import split_label
from ablate.plots.drawing import save

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Diagnosis:
    """The measurements of several models."""

    results: dict[str, dict[str, Result]]
    """Measurement -> label of a model -> numbers."""
    folder: Path
    """The folder of the figures and numbers."""
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Remarks on these models."""
    models: dict[str, str] = field(default_factory=dict)
    """Label -> the data that the model was measured on."""
    coordinates: dict[str, Coordinates] = field(default_factory=dict)
    """Label of a recipe -> its coordinate check."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a number that is not finite is null."""
        measured = {
            name: {label: result.to_dict() for label, result in own.items()} for name, own in self.results.items()
        }
        if self.coordinates:
            measured[coordinates.NAME] = {label: check.to_dict() for label, check in self.coordinates.items()}
        return {
            "models": self.models,
            "measurements": measured,
            "notes": self.notes,
            "folder": str(self.folder),
            "files": [str(file) for file in self.files],
        }


def diagnose(
    models: str | Sequence[str],
    what: Sequence[str] = (),
    *,
    tokens: int = TOKENS,
    data: Sequence[str] = (),
    output: str | Path | None = None,
    positions: str = "all",
    batch_tokens: int = 2048,
    device: str | None = None,
    dtype: str = "float32",
    seed: int = 0,
    trust_remote_code: bool = False,
    metrics: Mapping[str, Metric] | None = None,
    benchmarks: MetricSource | None = None,
    widths: Sequence[int] | None = None,
    depths: Sequence[int] | None = None,
    updates: int | None = None,
    seeds: int | None = None,
) -> Diagnosis:
    """Measure `models`, one after another, and draw the results together.

    Args:
        models: a run's id, a checkpoint's path, sweep:NAME/ARM, init: followed by one of these, hf:NAME or timm:NAME,
            each with an optional prefix LABEL=. For coordinates also the file of an experiment, or of a sweep, each arm
            of which is then a model.
        what: names of measurements; none: all but coordinates, which takes the recipes of the models alone and trains
            small models by them.
        tokens: number of tokens, or images, to measure on; fewer if the data has fewer.
        data: `--data` words; none: the validation data of the model's own experiment.
        output: the folder for figures and numbers; by default one of the store.
        positions: tokens over which the angular distance is averaged, "all" or the "last" of each sequence.
        batch_tokens: tokens, or images, that are in memory at once.
        device: torch's name of a device; by default a GPU if there is one.
        dtype: "float32" or "bfloat16", of the weights.
        seed: of the random vectors of the Jacobian.
        trust_remote_code: whether code that comes with a model of the hub may be run.
        metrics: scores for layer removal, by name: a function of the model.
        benchmarks: scores for layer removal that are loaded for each model, such as tasks of lm-evaluation-harness.
        widths: of coordinates, as the next ones; by default 32 to 512, or the nearest that have whole heads.
        depths: by default 2 to 32.
        updates: of each small model, by default 10.
        seeds: initialisations to average over, by default 3.

    Complete measurements are stored and not taken again. Raises AblateError.
    """
    plugins.load()
    models = [models] if isinstance(models, str) else models
    kinds = select(list(what), [coordinates.NAME]) if set(what) != {coordinates.NAME} else []
    settings = Settings(tokens, data, positions, batch_tokens, device, dtype, seed, trust_remote_code)
    check = _read_check({"widths": widths, "depths": depths, "updates": updates, "seeds": seeds}, what)
    if benchmarks and Pruning not in kinds:
        raise AblateError("--tasks is for layer removal: include pruning in --what.")
    if files := [name for name in models if kinds and is_recipe_file(split_label(name)[1])]:
        raise AblateError(
            f"{files[0]} is a recipe without weights, for which only {coordinates.NAME} can be measured: give "
            f"--what {coordinates.NAME}, or a run's id, a checkpoint or sweep:NAME/ARM."
        )
    recipes = [recipe for name in models for recipe in open_recipes(name)] if check else []
    folder = make_folder(Path(output).expanduser() if output else choose_folder(models))
    results: dict[str, dict[str, Result]] = {kind.name: {} for kind in kinds}
    runs: dict[str, str] = {}
    described: dict[str, str] = {}
    notes: dict[str, list[str]] = {}
    for name in models if kinds else ():
        measured = measure_model(name, kinds, settings, metrics=metrics, benchmarks=benchmarks, require_all=bool(what))
        label = number_label(measured.label, described)
        described[label] = measured.data
        notes[label] = measured.notes
        for kind, result in measured.results.items():
            results[kind][label] = result
        if measured.run_id:
            runs[label] = measured.run_id
    checks: dict[str, Coordinates] = {}
    for recipe in recipes:
        assert check is not None
        label = number_label(recipe.label, checks)
        checks[label] = check_coordinates(recipe, check, data, batch_tokens, settings.opening.device)
        described.setdefault(label, checks[label].data)
        if recipe.run_id:
            runs.setdefault(label, recipe.run_id)
    taken = {k: v for k, v in results.items() if v}
    diagnosis = _write(Diagnosis(taken, folder, [], join_notes(notes), described, checks))
    _log(diagnosis, runs)
    return diagnosis


def _read_check(options: Mapping[str, Any], what: Sequence[str]) -> CheckSettings | None:
    """Return the settings of the coordinate check; None if it is not asked for. Raises AblateError."""
    own = {name: value for name, value in options.items() if value is not None}
    if coordinates.NAME in what:
        return CheckSettings(**own)
    if own:
        raise AblateError(f"--{next(iter(own))} is for the coordinate check: include {coordinates.NAME} in --what.")
    return None


def number_label(label: str, labels: Mapping[str, Any]) -> str:
    """Return `label`, with a number if it is already used."""
    return next(one for n in range(1, len(labels) + 2) if (one := f"{label} ({n})" if n > 1 else label) not in labels)


def choose_folder(models: Sequence[str], kind: str = "diagnostics") -> Path:
    """Return a folder of the store, below that of its `kind`, the same for the same models."""
    words = "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", Path(one).name if "/" in one else one) for one in models)
    digest = hashlib.sha256("\n".join(models).encode()).hexdigest()[:8]
    try:
        store = tracking.open_store()
    except StoreError as error:
        raise StoreError(f"{error} Or choose a folder: --output FOLDER.") from None
    return store / kind / f"{words[:60].strip('-')}-{digest}"


def make_folder(folder: Path) -> Path:
    """Return `folder`, created if missing. Raises AblateError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AblateError(
            f"{folder} cannot be written: {error.strerror or error}. Choose another folder with --output."
        ) from None
    return folder


def _write(diagnosis: Diagnosis) -> Diagnosis:
    """Write figures as PNG and SVG, numbers as CSV and JSON."""
    files: list[Path] = []
    for name, results in diagnosis.results.items():
        files += save(measurements[name].draw(results), diagnosis.folder)
        files.append(
            _write_table(diagnosis.folder / f"{name}.csv", {label: own.rows for label, own in results.items()})
        )
    if checks := diagnosis.coordinates:
        files += save(draw(checks), diagnosis.folder)
        rows = {label: check.rows for label, check in checks.items()}
        files.append(_write_table(diagnosis.folder / f"{coordinates.NAME}.csv", rows))
    file = diagnosis.folder / "diagnostics.json"
    diagnosis = replace(diagnosis, files=[*files, file])
    file.write_text(json.dumps(diagnosis.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return diagnosis


def _write_table(file: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> Path:
    """Write the rows of models by label."""
    columns = dict.fromkeys(key for rows in tables.values() for row in rows for key in row)
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, ["model", *columns])
        writer.writeheader()
        for label, rows in tables.items():
            writer.writerows({"model": label, **row} for row in rows)
    return file


def _log(diagnosis: Diagnosis, runs: Mapping[str, str]) -> None:
    """Store the figures, and each model's numbers, in its run."""
    for label, run_id in runs.items():
        own = {name: results[label].to_dict() for name, results in diagnosis.results.items() if label in results}
        tracker, files = tracking.Tracker(run_id), [*diagnosis.files]
        if own:  # else earlier measurements of its weights stay
            files.append(diagnosis.folder / MEASURED)
            files[-1].write_text(json.dumps({"label": label, "last": own}, allow_nan=False) + "\n", encoding="utf-8")
        try:
            tracking.find_active_run(run_id)
            for path in files:
                tracker.log_file(path, FOLDER)
        except AblateError as error:  # the figures are in their folder all the same
            logger.warning(f"What was measured of {label} is not recorded in its run. {error}")
        (diagnosis.folder / MEASURED).unlink(missing_ok=True)
