"""The time of an update on this machine, measured on a few updates."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ablate.data import Corpus
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.training.callbacks import Stop
from ablate.training.fit import translate_errors
from ablate.training.loaders import Loaders
from ablate.training.module import TrainingModule
from ablate.training.precision import choose_speed
from ablate.training.trainer import BARE, quiet_lightning


class Stopwatch(Callback):
    """Times a number of updates, or those that start within a number of seconds, and then ends training with `Stop`."""

    def __init__(self, updates: int, seconds: float) -> None:
        self.updates, self.seconds = updates, seconds
        self.durations: list[float] = []
        self._begin = self._since = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin = self._since = _read_clock(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == len(self.durations):  # one of several batches of an update
            return
        now = _read_clock(trainer)
        self.durations.append(now - self._since)
        self._since = now
        if len(self.durations) == self.updates or now - self._begin > self.seconds:
            raise Stop("completed", "timed")


def _read_clock(trainer: Trainer) -> float:
    """Return the time after all launched work has finished: a GPU computes asynchronously."""
    device = trainer.strategy.root_device
    if device.type != "cpu":
        torch.get_device_module(device.type).synchronize()
    return time.perf_counter()


def time_update(experiment: Experiment, corpus: Corpus, updates: int, seconds: float) -> float:
    """Return the seconds of the fastest of `updates` updates of `experiment`, eager and on one device, which is a GPU
    where there is one; of fewer where they take more than `seconds`. Raises DataError, OutOfMemory."""
    quiet_lightning()
    if isinstance(loaders := experiment.trainer.num_workers, int):  # starting hundreds takes longer than timing
        fewer = experiment.trainer.model_copy(update={"num_workers": min(loaders, ranks.count_cores())})
        experiment = experiment.model_copy(update={"trainer": fewer})
    stopwatch = Stopwatch(updates, seconds)
    trainer = Trainer(
        max_steps=updates,
        accelerator="auto",
        devices=1,
        precision=choose_speed(experiment, corpus).precision,  # type: ignore[arg-type]
        accumulate_grad_batches=experiment.trainer.accumulate,
        gradient_clip_val=experiment.trainer.gradient_clip_val,
        limit_val_batches=0,
        callbacks=[stopwatch],
        **BARE,
    )
    with translate_errors(), contextlib.suppress(Stop):
        trainer.fit(TrainingModule(experiment, corpus), Loaders(experiment, corpus))
    return min(stopwatch.durations)
