"""`diagnose`: measurements on the layers of models, as tables and figures on one scale."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ablate import tracking
from ablate.config.errors import AblateError
from ablate.diagnostics import Metric, Options, Pruning, Result, chosen, measure, measurements
from ablate.diagnostics.measures.base import FOLDER, MEASURED
from ablate.diagnostics.models import open_model
from ablate.diagnostics.opening import Opened, Opening
from ablate.evaluation.layer_removal import Benchmarks, metrics_of
from ablate.reports import style

TOKENS = 256_000
POSITIONS = ("all", "last")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Diagnosis:
    """What was measured."""

    results: dict[str, dict[str, Result]]
    """Measurement -> label of a model -> numbers."""
    folder: Path
    """Where the figures and numbers are."""
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What to know before comparing."""
    models: dict[str, str] = field(default_factory=dict)
    """Label -> the data that the model was measured on."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; a number that is not finite is null."""
        return {
            "models": self.models,
            "measurements": {
                name: {label: result.to_dict() for label, result in found.items()}
                for name, found in self.results.items()
            },
            "notes": self.notes,
            "folder": str(self.folder),
            "files": [str(file) for file in self.files],
        }


def diagnose(
    models: Sequence[str],
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
    benchmarks: Benchmarks | None = None,
) -> Diagnosis:
    """Measures `models`, one after another, and draws them together.

    Args:
        models: a run's id, a checkpoint's path, sweep:NAME/ARM, init: and one of these, hf:NAME or timm:NAME, each
            perhaps after LABEL=.
        what: names of measurements; none: all.
        tokens: tokens, or images, that each is measured on, as far as the data has so many.
        data: `--data` words; none: the validation data of the model's own experiment.
        output: the folder for figures and numbers; by default one of the store.
        positions: of which tokens the angular distance is the mean, "all" or the "last" of each sequence.
        batch_tokens: tokens, or images, that are in memory at once.
        device: torch's name of one; by default a GPU where there is one.
        dtype: "float32" or "bfloat16", of the weights.
        seed: what the random vectors of the Jacobian depend on.
        trust_remote_code: whether code that comes with a model of the hub may be run.
        metrics: scores for layer removal, by name: a function of the model.
        benchmarks: tasks of lm-evaluation-harness for layer removal.

    Stopped and called again, it goes on where it was. Raises AblateError.
    """
    kinds = chosen(list(what))
    _check("--positions", positions, POSITIONS)
    _check("--dtype", dtype, DTYPES)
    target = _device(device)
    opening = Opening(tuple(data), target, DTYPES[dtype], trust_remote_code)
    if benchmarks and Pruning not in kinds:
        raise AblateError("--tasks are for layer removal: --what pruning, with others or alone.")
    folder = Path(output).expanduser() if output else _folder(models)
    results: dict[str, dict[str, Result]] = {kind.name: {} for kind in kinds}
    runs: dict[str, str] = {}
    told: dict[str, str] = {}
    notes: list[str] = []
    for given in models:
        opened = open_model(given, opening)
        opened = replace(opened, subject=replace(opened.subject, label=_unique(opened.subject.label, told)))
        label = opened.subject.label
        told[label] = opened.data
        fitting = [kind for kind in kinds if opened.has_targets or not kind.needs_targets]
        if len(fitting) < len(kinds):
            left = ", ".join(kind.name for kind in kinds if kind not in fitting)
            if what:
                raise AblateError(f"{label}: its classes are not those of the data, which {left} need.")
            notes.append(f"{label}: its classes are not those of the data, so {left} are left out.")
        notes += _short(opened, tokens)
        scores = dict(metrics or {}) | dict(metrics_of(opened, benchmarks) if benchmarks else {})
        options = Options(positions, seed, scores)
        found = measure(
            opened.subject, fitting, options, tokens=tokens, batch_tokens=batch_tokens, folder=_made(folder)
        )
        for name, result in found.items():
            results[name][label] = result
        if opened.run_id:
            runs[label] = opened.run_id
    diagnosis = _written(Diagnosis({k: v for k, v in results.items() if v}, folder, [], notes, told))
    _log(diagnosis, runs)
    return diagnosis


def _check(name: str, given: str, accepted: Sequence[str] | Mapping[str, Any]) -> None:
    if given not in accepted:
        raise AblateError(f"{name}: must be one of {', '.join(accepted)}, given {given}")


def _device(name: str | None) -> torch.device:
    """The device of that name, or a GPU where there is one."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise AblateError(f"--device {name}: {str(error).splitlines()[0]}") from None
    return device


def _unique(label: str, known: Mapping[str, str]) -> str:
    """`label`, numbered where it is taken."""
    return next(one for n in range(1, len(known) + 2) if (one := f"{label} ({n})" if n > 1 else label) not in known)


def _short(opened: Opened, tokens: int) -> list[str]:
    there = opened.subject.items * opened.subject.per_item
    unit = opened.subject.unit
    return [f"{opened.subject.label}: the data has {there:,} {unit}, fewer than {tokens:,}."] if there < tokens else []


def _folder(models: Sequence[str]) -> Path:
    """A folder of the store, the same for the same models."""
    words = "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", Path(one).name if "/" in one else one) for one in models)
    digest = hashlib.sha256("\n".join(models).encode()).hexdigest()[:8]
    return tracking.open_store() / "diagnostics" / f"{words[:60].strip('-')}-{digest}"


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AblateError(f"{folder} cannot be written: {error.strerror or error}. Give another --output.") from None
    return folder


def _written(found: Diagnosis) -> Diagnosis:
    """Figures as PNG and SVG, numbers as CSV and JSON."""
    from ablate.diagnostics.figures import save

    files: list[Path] = []
    for name, results in found.results.items():
        files += save(
            measurements[name].draw({style.plain(label): result for label, result in results.items()}),
            found.folder / f"{name}.png",
        )
        files.append(_table(found.folder / f"{name}.csv", results))
    file = found.folder / "diagnostics.json"
    found = replace(found, files=[*files, file])
    file.write_text(json.dumps(found.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return found


def _table(file: Path, results: Mapping[str, Result]) -> Path:
    columns = dict.fromkeys(key for result in results.values() for row in result.rows for key in row)
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, ["model", *columns])
        writer.writeheader()
        for label, result in results.items():
            writer.writerows({"model": label, **row} for row in result.rows)
    return file


def _log(found: Diagnosis, runs: Mapping[str, str]) -> None:
    """Stores the figures in each model's run, and its own numbers."""
    for label, run_id in runs.items():
        own = {name: results[label].to_dict() for name, results in found.results.items()}
        file = found.folder / MEASURED
        file.write_text(json.dumps({"label": label, "last": own}, allow_nan=False) + "\n", encoding="utf-8")
        tracker = tracking.Tracker(run_id)
        for path in [*found.files, file]:
            tracker.file(path, FOLDER)
        file.unlink()
