"""`diagnose`: take measurements on the layers of models, as tables and figures on one scale."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.config.errors import AblateError
from ablate.diagnostics.measures import Metric, Pruning, Result, measurements, select
from ablate.diagnostics.measures.base import FOLDER, MEASURED
from ablate.diagnostics.measuring import TOKENS, MetricSource, Settings, join_notes, measure_model
from ablate.plots import style
from ablate.plots.panels import save


@dataclass(frozen=True)
class Diagnosis:
    """The measurements of several models."""

    results: dict[str, dict[str, Result]]
    """Measurement -> label of a model -> numbers."""
    folder: Path
    """The folder of the figures and numbers."""
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is to be known of these models."""
    models: dict[str, str] = field(default_factory=dict)
    """Label -> the data that the model was measured on."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a number that is not finite is null."""
        return {
            "models": self.models,
            "measurements": {
                name: {label: result.to_dict() for label, result in results.items()}
                for name, results in self.results.items()
            },
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
) -> Diagnosis:
    """Measure `models`, one after another, and draw the results together.

    Args:
        models: a run's id, a checkpoint's path, sweep:NAME/ARM, init: followed by one of these, hf:NAME or timm:NAME,
            each
            with an optional prefix LABEL=.
        what: names of measurements; none: all.
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

    If it is stopped and called again, it resumes. Raises AblateError.
    """
    models = [models] if isinstance(models, str) else models
    kinds = select(list(what))
    settings = Settings(tokens, data, positions, batch_tokens, device, dtype, seed, trust_remote_code)
    if benchmarks and Pruning not in kinds:
        raise AblateError("--tasks is for layer removal: include pruning in --what.")
    folder = make_folder(Path(output).expanduser() if output else choose_folder(models))
    results: dict[str, dict[str, Result]] = {kind.name: {} for kind in kinds}
    runs: dict[str, str] = {}
    described: dict[str, str] = {}
    notes: dict[str, list[str]] = {}
    for name in models:
        measured = measure_model(
            name, kinds, settings, folder, metrics=metrics, benchmarks=benchmarks, require_all=bool(what)
        )
        label = number_label(measured.label, described)
        described[label] = measured.data
        notes[label] = measured.notes
        for kind, result in measured.results.items():
            results[kind][label] = result
        if measured.run_id:
            runs[label] = measured.run_id
    diagnosis = _write(Diagnosis({k: v for k, v in results.items() if v}, folder, [], join_notes(notes), described))
    _log(diagnosis, runs)
    return diagnosis


def number_label(label: str, labels: Mapping[str, str]) -> str:
    """Return `label`, with a number if it is already used."""
    return next(one for n in range(1, len(labels) + 2) if (one := f"{label} ({n})" if n > 1 else label) not in labels)


def choose_folder(models: Sequence[str], kind: str = "diagnostics") -> Path:
    """Return a folder of the store, below that of its `kind`, the same for the same models."""
    words = "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", Path(one).name if "/" in one else one) for one in models)
    digest = hashlib.sha256("\n".join(models).encode()).hexdigest()[:8]
    return tracking.open_store() / kind / f"{words[:60].strip('-')}-{digest}"


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
        files += save(
            measurements[name].draw({style.escape_math(label): result for label, result in results.items()}),
            diagnosis.folder / f"{name}.png",
        )
        files.append(_write_table(diagnosis.folder / f"{name}.csv", results))
    file = diagnosis.folder / "diagnostics.json"
    diagnosis = replace(diagnosis, files=[*files, file])
    file.write_text(json.dumps(diagnosis.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return diagnosis


def _write_table(file: Path, results: Mapping[str, Result]) -> Path:
    columns = dict.fromkeys(key for result in results.values() for row in result.rows for key in row)
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, ["model", *columns])
        writer.writeheader()
        for label, result in results.items():
            writer.writerows({"model": label, **row} for row in result.rows)
    return file


def _log(diagnosis: Diagnosis, runs: Mapping[str, str]) -> None:
    """Store the figures, and each model's numbers, in its run."""
    for label, run_id in runs.items():
        own = {name: results[label].to_dict() for name, results in diagnosis.results.items()}
        file = diagnosis.folder / MEASURED
        file.write_text(json.dumps({"label": label, "last": own}, allow_nan=False) + "\n", encoding="utf-8")
        tracker = tracking.Tracker(run_id)
        for path in [*diagnosis.files, file]:
            tracker.log_file(path, FOLDER)
        file.unlink()
