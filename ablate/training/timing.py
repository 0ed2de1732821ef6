"""The time of an update on this machine, measured by making a few."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ablate import tracking
from ablate.data import Corpus
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.training.callbacks import Stop
from ablate.training.loaders import Loaders, count_workers
from ablate.training.module import TrainingModule
from ablate.training.precision import choose_speed
from ablate.training.runs import translate_errors
from ablate.training.trainer import build_trainer


def time_update(experiment: Experiment, corpus: Corpus, updates: int, seconds: float) -> tuple[float, float]:
    """Return the seconds of the fastest and of the slowest of `updates` updates of `experiment` after the first, eager
    and on one device, a GPU if there is one; of fewer updates if they take more than `seconds`. On a CPU it is the time
    of the processor, which other processes hardly change. Raises DataError, OutOfMemory."""
    config = experiment.trainer
    fewer: dict[str, Any] = {"profiler": None}
    if isinstance(config.num_workers, int):  # starting hundreds takes longer than timing
        fewer["num_workers"] = min(config.num_workers, ranks.count_cores())
    experiment = experiment.model_copy(update={"trainer": config.model_copy(update=fewer)})
    # of processes that read data, this one knows just how long it waits for them
    alone = not torch.cuda.is_available() and not count_workers(experiment.trainer, corpus.train)
    watch = _Watch(time.thread_time if alone else time.perf_counter, updates, seconds)
    with translate_errors():
        precision, folder = choose_speed(experiment).precision, tracking.cache_folder()
        trainer = build_trainer(experiment, precision, [watch], folder, limit_val_batches=0)
        with contextlib.suppress(Stop):
            trainer.fit(TrainingModule(experiment, corpus), Loaders(experiment, corpus))
    known = watch.durations[1:] or watch.durations  # the first includes all preparation
    return min(known), max(known)


class _Watch(Callback):
    """Measures each update by `clock`, and ends the training after so many `updates` or `seconds`."""

    def __init__(self, clock: Callable[[], float], updates: int, seconds: float) -> None:
        self.clock, self.updates, self.seconds = clock, updates, seconds
        self.durations: list[float] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin, self._since = time.perf_counter(), self._read(pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == len(self.durations):  # gradients are being accumulated
            return
        now = self._read(pl_module)
        self.durations.append(now - self._since)
        if len(self.durations) == self.updates or time.perf_counter() - self._begin > self.seconds:
            raise Stop("paused", "timed")
        self._since = now

    def _read(self, module: LightningModule) -> float:
        """Return the time when all launched work is done: a GPU computes asynchronously."""
        if module.device.type != "cpu":
            torch.get_device_module(module.device.type).synchronize()
        return self.clock()
