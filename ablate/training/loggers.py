"""The logger of a run: every point goes to MLflow, which is the record, and to the logs that `trainer.loggers` adds."""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch.loggers import Logger

from ablate import tracking
from ablate.experiment.observers import LoggerConfig, LogPlace
from ablate.experiment.tree import Experiment
from ablate.tracking.tracker import STEP_METRIC, Tracker
from ablate.training.runs import describe_error, name_run
from ablate.training.undisturbed import keep_random_states

logger = logging.getLogger(__name__)

_NOT_IN_MLFLOW = re.compile(r"[^\w\-. :/]")
"""Letters that MLflow takes in no name."""


class FurtherLog:
    """A log beside MLflow. Where it fails it is left out from there on, with a warning; it draws no random numbers of
    the run."""

    def __init__(self, config: LoggerConfig, place: LogPlace, settings: Mapping[str, Any]) -> None:
        self.config = config
        self.failure = ""
        """How it failed, if it did."""
        self._logger: Logger | None = None
        with self._forgive():
            self._logger = config.build(place)
        self._call(lambda log: log.log_hyperparams(dict(settings)))

    def log_metrics(self, values: Mapping[str, float], updates: int) -> None:
        """Log a point after so many updates."""
        self._call(lambda log: log.log_metrics(dict(values), updates))

    def close(self, status: str) -> None:
        """End the log of a run that ended as `status`."""
        self._call(lambda log: self.config.close(log, status))

    def _call(self, function: Callable[[Logger], None]) -> None:
        if self._logger is not None:
            with self._forgive():
                function(self._logger)

    @contextlib.contextmanager
    def _forgive(self) -> Iterator[None]:
        try:
            with keep_random_states():
                yield
        except Exception as error:
            self._logger = None
            self.failure = f"the log {self.config.kind}: {describe_error(error)}"
            logger.warning(f"\nA log is given up: {self.failure}. The run goes on; MLflow has every metric.")


class RunLogger(Logger):
    """The one logger of Lightning's Trainer. What callbacks log by it, or by `self.log` of the module, is logged at the
    current number of updates.

    Args:
        experiment: the run's.
        tracker: its run in MLflow; None on ranks above 0, which log nothing.
        items_per_update: tokens or images of an update.
        updates: those made before, of a run that goes on.
    """

    def __init__(self, experiment: Experiment, tracker: Tracker | None, items_per_update: int, updates: int) -> None:
        super().__init__()
        self.tracker, self.unit, self.items_per_update = tracker, experiment.unit, items_per_update
        self.count_updates: Callable[[], int] = lambda: updates
        """Returns the updates made; the Trainer's, once there is one."""
        self.further: list[FurtherLog] = []
        if tracker and experiment.trainer.loggers:
            place = LogPlace(tracking.open_folder("logs"), tracker.run_id, name_run(experiment), updates)
            settings = {path: _redact(value) for path, value in experiment.flat().items()}
            self.further = [FurtherLog(config, place, settings) for config in experiment.trainer.loggers]

    @property
    def name(self) -> str:
        """What logs: MLflow and the others."""
        return "ablate"

    @property
    def version(self) -> str:
        """The run's id in MLflow."""
        return self.tracker.run_id if self.tracker else ""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Log nothing: the whole configuration is logged when the run begins."""

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log what a callback has measured. The `step` that Lightning counts is left out: in a validation it is that of
        its batches."""
        numbers = {name: _to_number(value) for name, value in metrics.items()}
        self.record({_NOT_IN_MLFLOW.sub("_", k): v for k, v in numbers.items() if v is not None}, self.count_updates())

    def record(self, values: Mapping[str, float], updates: int) -> None:
        """Log a point after so many updates; what is not finite cannot be drawn and is left out."""
        point = {key: value for key, value in values.items() if math.isfinite(value)} | {STEP_METRIC: updates}
        items = updates * self.items_per_update
        if self.tracker:
            self.tracker.log_metrics(point, items)
        for log in self.further:
            log.log_metrics({**point, f"trainer/{self.unit}": items}, updates)

    def close(self, status: str) -> None:
        """End the further logs, of a run that ended as `status`. Lightning's `finalize` comes after each of several
        parts of a run, and does nothing."""
        for log in self.further:
            log.close(status)


def _redact(value: Any) -> Any:
    return tracking.redact(value) if isinstance(value, str) else value


def _to_number(value: Any) -> float | None:
    """Return `value` as a number; None for what is none."""
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else None
    return float(value) if isinstance(value, (bool, int, float)) else None
