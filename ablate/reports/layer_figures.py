"""Figures of the layers of each arm's chosen or best trial: measurements from training, or from a later `ablate
diagnose`, on one scale."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate.config.errors import StoreError
from ablate.diagnostics.measures import Result, measurements
from ablate.diagnostics.measures.base import MEASURED, TRAINING
from ablate.diagnostics.stored import parse_history, read_measurements
from ablate.plots import style
from ablate.plots.layers import draw_courses
from ablate.plots.panels import save
from ablate.sweeps.records import SweepRecord

PREFIX = "layers-"
"""Prefix of their file names."""


def draw_layers(record: SweepRecord, folder: Path) -> dict[Path, str]:
    """Write a figure for each measurement that some arm has, and for each number of the layers through training; return
    each path with its caption. If the MLflow store is unreachable, there are none."""
    runs = dict(_read_runs(record))
    which = "chosen" if any(record.settled(arm) is not record.best(arm) for arm in runs) else "best"
    captions: dict[Path, str] = {}
    for name, kind in measurements.items():
        results = {arm: content["last"][name] for arm, content in runs.items() if name in content["last"]}
        if results:
            figure = kind.draw({style.escape_math(arm): Result.from_dict(result) for arm, result in results.items()})
            path, _ = save(figure, folder / f"{PREFIX}{name}.png")
            captions[path] = f"{kind.title}: the {which} trial of each arm."
        for column, label in kind.columns.items():
            histories = {arm: h for arm, content in runs.items() if (h := parse_history(content, column))}
            if histories and any(len(course) > 1 for course in histories.values()):
                unit = next(iter(runs.values())).get("unit", "tokens")
                figure = draw_courses(f"{kind.title}, during training", histories, label, unit)
                path, _ = save(figure, folder / f"{PREFIX}{name}-{column}.png")
                captions[path] = f"During training, for each layer: {label}. The {which} trial of each arm."
    return captions


def _read_runs(record: SweepRecord) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield arm -> the numbers of its chosen or best trial's run: at the end, preferring those of `ablate diagnose`,
    and their history during training."""
    from mlflow.exceptions import MlflowException

    for arm in record.arms:
        settled = record.settled(arm)
        if settled is None or settled.run_id is None:
            continue
        content: dict[str, Any] = {"last": {}, "history": {}}
        with contextlib.suppress(MlflowException, StoreError, OSError, ValueError):
            for new in read_measurements(settled.run_id, (TRAINING, MEASURED)):
                content |= {**new, "last": {**content["last"], **new["last"]}}
        if content["last"]:
            yield arm, content
