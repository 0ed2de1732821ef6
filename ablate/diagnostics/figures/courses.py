"""Numbers of the layers during training, as the runs of a sweep have stored them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ablate.config.errors import AblateError
from ablate.diagnostics.figures.groups import Group
from ablate.diagnostics.measures import Measurement, Result
from ablate.diagnostics.measures.base import TRAINING, parse_history, read_measurements
from ablate.sweeps.runs import Run


def read_courses(figure: str, kind: type[Measurement], groups: Sequence[Group]) -> dict[str, Result]:
    """Return run -> the first number of `kind` during its training, a row for each update and layer, for all runs of
    `groups`. Raises AblateError if some were not measured in training, which cannot be made up for."""
    foreign = [group.label for group in groups if not group.runs]
    courses = {str(run.run_id): _read_course(run, kind) for group in groups for run in group.runs}
    lacking = [group.label for group in groups if any(not courses[str(run.run_id)].rows for run in group.runs)]
    problems = []
    if foreign:
        problems.append(f"{', '.join(foreign)}: {figure} shows what is measured in training. Give the name of a sweep.")
    if lacking:
        problems.append(
            f"{', '.join(lacking)}: {figure} shows what is measured in training, and the runs were not. Set "
            f"trainer.diagnose.what={kind.name} in the sweep's file, trainer.diagnose.interval for how often, and run "
            "it with --fresh."
        )
    if problems:
        raise AblateError("\n".join(problems))
    return courses


def _read_course(run: Run, kind: type[Measurement]) -> Result:
    """Return the numbers of one run; without rows if it has none, or was measured only once."""
    from mlflow.exceptions import MlflowException

    column = next(iter(kind.columns))
    content: dict[str, Any] = {"history": {}}
    with contextlib.suppress(MlflowException, OSError, ValueError):
        content = next(read_measurements(str(run.run_id), (TRAINING,)), content)
    course = parse_history(content, column)
    if len(course) < 2:
        return Result([])
    return Result(
        [
            {"update": seen / run.items_per_update, "layer": layer, column: value}
            for seen, values in sorted(course.items())
            for layer, value in enumerate(values, 1)
        ]
    )
