"""Single-purpose callbacks (curves, validations, interruption, checkpoints), and the logger of a run."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from torch.optim import Optimizer

from ablate.config.errors import StoreError
from ablate.distributed import ranks
from ablate.tracking.tracker import STEP_METRIC, Tracker
from ablate.training import random_states
from ablate.training.checkpoints import PART, move_into_place, remove, sync_to_disk
from ablate.training.module import TrainingModule
from ablate.training.runs import CHECKPOINT


class RunCallback(Callback):
    """A callback that an extension of the experiment adds to a run."""

    def publish(self, folder: Path, tracker: Tracker) -> None:
        """Write the final results after training, on rank 0."""

    def list_layers(self) -> dict[str, list[float | None]]:
        """Return number -> its value for each layer at the end, which the record of a sweep keeps."""
        return {}


class Stop(Exception):  # noqa: N818 - not an error
    """Leaves training early with a status: diverged, pruned, paused or interrupted."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def count_seen_items(trainer: Trainer, module: LightningModule) -> int:
    """Return the number of tokens or images trained on so far, over all devices."""
    assert isinstance(module, TrainingModule)
    return trainer.global_step * module.experiment.trainer.batch_size * module.per_item


class Curves(Callback):
    """Every `log_every_n_steps` updates: training loss, gradient norm before clipping, learning rate, throughput.

    Only then is the loss fetched from the device, and only then is divergence looked for: a loss that is not finite,
    or above `diverge_factor` times the larger of the first loss and that of guessing evenly (of classes: ln of their
    number). It is the mean over all ranks and accumulated batches, so that they stop together. An update without any
    target has no loss.
    """

    def __init__(self, progress: Callable[[int, float], None] | None = None) -> None:
        self.progress = progress
        self.first_loss: float | None = None
        self.training_seconds = 0.0
        self._since = 0.0
        self._norm: torch.Tensor | None = None
        self._losses: list[torch.Tensor] = []  # of the batches accumulated so far
        self._lr = 0.0
        self._last = (0.0, 0)  # training seconds, updates at the last point
        self._first_seconds = 0.0  # of the first update, which compiles

    def state_dict(self) -> dict[str, Any]:
        seconds = {"training_seconds": self._clock(), "first_seconds": self._first_seconds}
        return {"first_loss": self.first_loss, **seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.first_loss = state_dict["first_loss"]
        self.training_seconds = state_dict["training_seconds"]
        self._first_seconds = state_dict["first_seconds"]

    def _clock(self) -> float:
        """Return the seconds spent in training, without validation and what follows it."""
        return self.training_seconds + (time.perf_counter() - self._since if self._since else 0.0)

    def find_seconds_per_update(self, updates: int) -> float | None:
        """Return the mean seconds of an update after the first; None before the second."""
        return (self._clock() - self._first_seconds) / (updates - 1) if updates > 1 else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._last = (self._clock(), trainer.global_step)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._since = self._since or time.perf_counter()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if pl_module.device.type != "cpu":  # which has launched work that is not done yet
            torch.get_device_module(pl_module.device.type).synchronize()
        self.training_seconds, self._since = self._clock(), 0.0

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if self._due(trainer, pl_module, trainer.global_step + 1):
            self._norm = ranks.norm([p.grad for p in pl_module.parameters() if p.grad is not None])
            self._lr = optimizer.param_groups[0]["lr"]  # the schedule has moved on when the batch ends

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        self._losses = [*self._losses, outputs["loss"].detach()][-trainer.accumulate_grad_batches :]
        if self._norm is None or not self._due(trainer, pl_module, step):
            return
        assert isinstance(pl_module, TrainingModule)
        scale = pl_module.train_loss_scale
        loss = (ranks.mean(torch.stack(self._losses).sum()) * scale).item() if scale else None
        norm = self._norm.item()
        self._norm = None
        now = self._clock()
        if step == 1:
            self._first_seconds = now
        seconds, steps = now - self._last[0], step - self._last[1]
        self._last = (now, step)
        items = steps * pl_module.experiment.trainer.batch_size * pl_module.per_item
        self.record(trainer, {
            **({} if loss is None else {"train/loss": loss}),
            "train/grad_norm": norm,
            "train/lr": self._lr,
            f"train/{pl_module.unit}_per_second": items / max(seconds, 1e-9),
        })  # fmt: skip
        if loss is None:
            return
        if self.progress:
            self.progress(step, loss)
        if self.first_loss is None:
            self.first_loss = loss
        even = pl_module.task.initial_loss(pl_module.corpus.classes)
        limit = pl_module.experiment.trainer.diverge_factor * max(even, self.first_loss)
        if not math.isfinite(loss) or loss > limit:
            raise Stop("diverged", f"training loss {loss:.4g} at update {step} (limit {limit:.4g})")

    def record(self, trainer: Trainer, values: Mapping[str, float]) -> None:
        """Log one point, to MLflow and to the loggers of `trainer.loggers`."""
        for logger in trainer.loggers:
            logger.log_metrics(dict(values), trainer.global_step)

    @staticmethod
    def _due(trainer: Trainer, module: LightningModule, step: int) -> bool:
        assert isinstance(module, TrainingModule)
        config = module.experiment.trainer
        return step % config.log_every_n_steps == 0 or step == 1 or step == config.max_steps


class Validations(Callback):
    """After each validation: logs the metrics and asks `decide(step, metrics)` whether the run continues; False prunes
    it."""

    def __init__(self, curves: Curves, decide: Callable[[int, Mapping[str, float]], bool] | None = None) -> None:
        self.curves, self.decide = curves, decide
        self.history: dict[int, dict[str, float]] = {}
        """Updates -> metrics."""

    @property
    def step(self) -> int:
        """Updates before the last validation; -1 before the first."""
        return max(self.history, default=-1)

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the last validation."""
        return self.history.get(self.step, {})

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = dict(state_dict["history"])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        self.history[trainer.global_step] = dict(pl_module.val_metrics)
        self.curves.record(trainer, self.metrics)
        if not math.isfinite(self.metrics["val/loss"]):
            raise Stop("diverged", f"validation loss {self.metrics['val/loss']} at update {self.step}")
        last = self.step >= pl_module.experiment.trainer.max_steps
        goes_on = ranks.run_on_first(lambda: self.decide is None or self.decide(self.step, self.metrics))
        if not goes_on and not last:
            raise Stop("pruned", f"pruned at update {self.step}")


class Leave(Callback):
    """Ends the run after an update and its validation: as interrupted when `asked()` becomes true, and as paused after
    exactly `pause_at` updates. `save` writes the checkpoint to resume from. It is the last callback. The ranks of a
    group must stop together: all count updates for themselves, and rank 0 is asked. Agreeing takes a broadcast, which
    would slow down updates of milliseconds: they do it about every `LOOK` seconds, and at least every
    `log_every_n_steps`.
    """

    LOOK = 0.2

    def __init__(
        self, asked: Callable[[], bool] | None, save: Callable[[Trainer], None], pause_at: int | None = None
    ) -> None:
        self.asked, self.save, self.pause_at = asked or (lambda: False), save, pause_at
        self._was_asked = False
        self._next = 0  # updates before the ranks tell each other
        self._last: tuple[float, int] | None = None  # when they did, after how many updates

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.pause_at is not None and trainer.global_step >= self.pause_at:
            raise Stop("paused", f"paused at update {trainer.global_step}")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        config, step = pl_module.experiment.trainer, trainer.global_step
        if (batch_idx + 1) % config.accumulate or step % pl_module.experiment.validation.interval == 0:
            return
        self._was_asked = self._was_asked or self.asked()
        stops = False
        if step >= self._next:
            most = config.log_every_n_steps if ranks.world_size() > 1 else 1
            stops, self._next = ranks.run_on_first(lambda: self._look(step, most))
        if stops or step == self.pause_at:
            self.save(trainer)
            self._stop(step, stops)

    def _look(self, step: int, most: int) -> tuple[bool, int]:
        """Return whether the run ends, and the update after which to check next."""
        now, (then, before) = time.perf_counter(), self._last or (0.0, step)
        self._last = (now, step)
        updates = (step - before) * self.LOOK / max(now - then, 1e-9)
        return self._was_asked, step + max(1, min(most, int(updates)))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        step, updates = trainer.global_step, pl_module.experiment.trainer.max_steps
        stops = step < updates and ranks.run_on_first(lambda: self._was_asked or self.asked())
        if stops or step == self.pause_at:  # the checkpoint of this validation is written
            self._stop(step, stops)

    @staticmethod
    def _stop(step: int, asked: bool) -> None:
        raise Stop(*(("interrupted", f"stopped at update {step}") if asked else ("paused", f"paused at update {step}")))


class Checkpoint(Callback):
    """Keeps the state after the last validation in `folder/last.ckpt`: weights, optimizer, schedule, the random states
    of all ranks, counters.

    It is written under a temporary name and moved into place when it is on the disk; the previous one is kept as
    `previous.ckpt`, so that there is always a checkpoint to resume from after a killed process or a stopped machine.
    One process writes a file; if the model is sharded, the ranks write a folder while training continues, which is
    moved before the next one is started and when the run ends. It comes after the callbacks whose state it stores.
    """

    def __init__(self, folder: Path, tracker: Tracker | None) -> None:
        self.folder, self.tracker = folder, tracker
        self._states: Sequence[random_states.States] = ()
        self._begun = False

    def state_dict(self) -> dict[str, Any]:
        unsent = self.tracker.unsent if self.tracker else []
        return {"generators": self._states, "unsent": unsent}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._states = state_dict["generators"]
        if self.tracker:
            self.tracker.keep(state_dict["unsent"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        seed = pl_module.experiment.seed
        if self._states:
            random_states.restore_states(trainer.strategy, seed, trainer.global_step, self._states)
        else:
            random_states.begin_states(trainer.strategy, seed)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Write the checkpoint, or start writing it. Metrics up to here are sent first, and those that cannot be sent
        are stored in it, so that a resumed run loses none."""
        if self.tracker:
            self.tracker.flush()
        self.finish(trainer)
        self._states = random_states.gather_states(trainer.strategy)
        with self._full_disk():
            trainer.save_checkpoint(self.folder / PART)
        self._begun = True
        if not hasattr(trainer.strategy, "finish"):
            self.finish(trainer)

    def finish(self, trainer: Trainer) -> None:
        """Wait until the checkpoint that `save` started is the last checkpoint."""
        if not self._begun:
            return
        self._begun = False
        with self._full_disk():
            if finish := getattr(trainer.strategy, "finish", None):
                finish()
            ranks.run_on_first(self._move)

    def _move(self) -> None:
        part = self.folder / PART
        sync_to_disk(part)
        move_into_place(part, self.folder)

    @contextlib.contextmanager
    def _full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError):
                remove(self.folder / PART)
            raise StoreError(
                f"The checkpoint {self.folder / CHECKPOINT} cannot be written: {error.strerror or error}. "
                "Free some space, or move the store to another disk and set ABLATE_STORE to its path."
            ) from None


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
