"""The logger of a run: every point goes to MLflow, which is the record."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch.loggers import Logger

from ablate.tracking.tracker import STEP_METRIC, Tracker

_NOT_IN_MLFLOW = re.compile(r"[^\w\-. :/]")
"""Letters that MLflow accepts in no name."""


class RunLogger(Logger):
    """The first logger of Lightning's Trainer: every point goes to MLflow, at the current number of updates.

    Args:
        tracker: the run in MLflow; None on ranks above 0, which log nothing.
        items_per_update: tokens or images of an update.
    """

    def __init__(self, tracker: Tracker | None, items_per_update: int) -> None:
        super().__init__()
        self.tracker, self.items_per_update = tracker, items_per_update
        self.count_updates: Callable[[], int] = lambda: 0
        """Returns the updates made; the Trainer's, once there is one."""

    @property
    def name(self) -> str:
        """The name of this logger."""
        return "ablate"

    @property
    def version(self) -> str:
        """The run's id in MLflow."""
        return self.tracker.run_id if self.tracker else ""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Log nothing: the whole configuration is logged when the run begins."""

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log a point, without values that are not finite numbers, which cannot be drawn. Lightning's `step` is
        ignored: during a validation it counts batches."""
        if self.tracker is None:
            return
        numbers = {_NOT_IN_MLFLOW.sub("_", name): _to_number(value) for name, value in metrics.items()}
        point = {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}
        updates = self.count_updates()
        self.tracker.log_metrics(point | {STEP_METRIC: updates}, updates * self.items_per_update)


def _to_number(value: Any) -> float | None:
    """Return `value` as a number; None if it is not one."""
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else None
    return float(value) if isinstance(value, (bool, int, float)) else None
