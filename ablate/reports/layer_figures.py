"""Figures of the layers of each arm's chosen or best trial: measurements from training, or from a later `ablate
diagnose`, on one scale."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ablate.config.errors import StoreError
from ablate.diagnostics.measures import Result, measurements
from ablate.diagnostics.measures.base import MEASURED, TRAINING, parse_history, read_measurements
from ablate.plots.figure import Figure
from ablate.plots.layers import draw_courses
from ablate.sweeps.records import SweepRecord

PREFIX = "layers-"
"""Of their names."""


def draw_layers(record: SweepRecord) -> list[Figure]:
    """Return a figure of each measurement that some arm has, and of each number of the layers through training; none if
    the MLflow store is unreachable."""
    runs = dict(_read_runs(record))
    which = "chosen" if any(record.settled(arm) is not record.best(arm) for arm in runs) else "best"
    figures = []
    for name, kind in measurements.items():
        results = {arm: content["last"][name] for arm, content in runs.items() if name in content["last"]}
        if results:
            figure = kind.draw({arm: Result.from_dict(result) for arm, result in results.items()})
            caption = f"{kind.title}: the {which} trial of each arm."
            figures.append(replace(figure, name=f"{PREFIX}{name}", caption=caption))
        for column, label in kind.columns.items():
            histories = {arm: h for arm, content in runs.items() if (h := parse_history(content, column))}
            if histories and any(len(course) > 1 for course in histories.values()):
                unit = next(iter(runs.values())).get("unit", "tokens")
                title = f"{kind.title}, during training"
                figure = draw_courses(f"{PREFIX}{name}-{column}", title, histories, label, unit)
                caption = f"During training, for each layer: {label}. The {which} trial of each arm."
                figures.append(replace(figure, caption=caption))
    return figures


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
