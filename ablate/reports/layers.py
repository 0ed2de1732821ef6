"""The layers of each arm's best trial in the report: what was measured in training, or afterwards by `ablate diagnose`,
drawn together on one scale."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.config.errors import StoreError
from ablate.diagnostics.measures import Result, measurements
from ablate.diagnostics.measures.base import FOLDER, MEASURED, TRAINING, parse_number
from ablate.plots import style
from ablate.plots.layers import draw_courses
from ablate.plots.panels import save
from ablate.sweeps.records import SweepRecord


def draw_layers(record: SweepRecord, folder: Path) -> dict[Path, str]:
    """Writes a figure for each measurement that some arm has, and for each number of the layers through training; each
    with what it shows in a sentence. Of an MLflow store that is away there are none."""
    found = dict(_found(record))
    made: dict[Path, str] = {}
    for name, kind in measurements.items():
        results = {arm: content["last"][name] for arm, content in found.items() if name in content["last"]}
        if results:
            figure = kind.draw({style.escape_math(arm): Result.from_dict(result) for arm, result in results.items()})
            path, _ = save(figure, folder / f"layers-{name}.png")
            made[path] = f"{kind.title}: the best trial of each arm."
        for column, label in kind.columns.items():
            histories = {arm: h for arm, content in found.items() if (h := _history(content, column))}
            if histories and any(len(course) > 1 for course in histories.values()):
                unit = next(iter(found.values())).get("unit", "tokens")
                figure = draw_courses(f"{kind.title}, in training", histories, label, unit)
                path, _ = save(figure, folder / f"layers-{name}-{column}.png")
                made[path] = f"In training, of each layer: {label}. The best trial of each arm."
    return made


def _found(record: SweepRecord) -> Iterator[tuple[str, dict[str, Any]]]:
    """Arm -> what its best trial's run holds: the numbers at the end, those of `ablate diagnose` where there are any,
    and their history in training."""
    from mlflow.exceptions import MlflowException

    for arm in record.trials:
        best = record.best(arm)
        if best is None or best.run_id is None:
            continue
        content: dict[str, Any] = {"last": {}, "history": {}}
        with contextlib.suppress(MlflowException, StoreError, OSError, ValueError):
            for new in _stored(best.run_id):
                content |= {**new, "last": {**content["last"], **new["last"]}}
        if content["last"]:
            yield arm, content


def _stored(run_id: str) -> Iterator[dict[str, Any]]:
    """What training, and then `ablate diagnose`, left in a run."""
    client = tracking.client()
    there = {Path(item.path).name for item in client.list_artifacts(run_id, FOLDER)}
    with tempfile.TemporaryDirectory() as folder:
        for name in (TRAINING, MEASURED):
            if name in there:
                file = Path(client.download_artifacts(run_id, f"{FOLDER}/{name}", folder))
                yield json.loads(file.read_text(encoding="utf-8"))


def _history(content: Any, column: str) -> dict[int, list[float]]:
    course = content["history"].get(column, {})
    return {int(at): [parse_number(value) for value in row] for at, row in course.items()}
