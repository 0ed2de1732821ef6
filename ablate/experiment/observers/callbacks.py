"""The kinds of `trainer.callbacks`: Lightning's own that only observe, and those of plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field
from pydantic_core import PydanticCustomError

from ablate.config.base import Kind
from ablate.config.bounds import MOST_STEPS
from ablate.config.errors import Problem
from ablate.config.extras import find_missing
from ablate.config.registry import Registry

if TYPE_CHECKING:
    from lightning.pytorch import Callback


class CallbackConfig(Kind):
    """A callback of Lightning, whose hooks are called while a run is trained.

    It gets the Trainer, the LightningModule (an `ablate.tasks.base.Task`: `model`, `experiment`, and `val_metrics`
    after a validation) and the batches. What it gives to `trainer.logger.log_metrics` is logged in MLflow and by
    `trainer.loggers`. What its `state_dict` returns is in the checkpoints: numbers, text, tensors, lists and mappings
    of them.
    """

    changes_training: ClassVar[bool] = False
    """Whether a run has other numbers with it. An observer (False) is isolated from the random numbers of the run, and
    the run fails where it changes weights, gradients or the learning rate. One that changes training (True) is a
    setting like any other: arms of a sweep that differ in it are refused unless the file says so."""
    library: ClassVar[str] = ""
    """The Python module that it needs besides those of Ablate; '' for none."""
    extra: ClassVar[str] = ""
    """The extra of Ablate that installs `library`, if there is one."""

    kind: str

    def build(self) -> Callback:
        """Return the callback, a `lightning.pytorch.Callback`. Import Lightning in here: configurations are read
        without it."""
        raise NotImplementedError

    def validate(self) -> list[Problem]:  # type: ignore[override]
        """Return why it cannot run here: its library is missing. Asked before training, not where a configuration is
        read."""
        return find_missing(self.library, self.extra, f"the callback {self.kind}")


REFUSED: Mapping[str, str] = {
    "ModelCheckpoint": "a checkpoint is written after each validation anyway, from which a run goes on bit for bit; "
    "trainer.copy_to copies the last one elsewhere",
    "Checkpoint": "a checkpoint is written after each validation anyway; trainer.copy_to copies the last one elsewhere",
    "OnExceptionCheckpoint": "an interrupted run writes a checkpoint anyway: go on with ablate train --resume RUN_ID",
    "EarlyStopping": "runs that end after different numbers of updates cannot be compared: set trainer.max_steps, or "
    "the pruner of a sweep, which judges within an arm",
    "Timer": "how far a run gets would depend on the machine: set trainer.max_steps",
    "LearningRateFinder": "each arm would get another rate by another rule: search optimizer.lr in a sweep",
    "BatchSizeFinder": "the batch would depend on the machine: set trainer.batch_size, and trainer.accumulate where it "
    "does not fit; ablate plan says what does",
    "GradientAccumulationScheduler": "set trainer.accumulate, which does not change the size of an update",
    "StochasticWeightAveraging": "it changes the learning rate: set trainer.ema_decay, which reports the average "
    "beside the weights",
    "WeightAveraging": "set trainer.ema_decay, which reports the average beside the weights",
    "EMAWeightAveraging": "set trainer.ema_decay, which reports the average beside the weights",
    "BackboneFinetuning": "set warm_start.freeze",
    "BaseFinetuning": "set warm_start.freeze",
    "ModelPruning": "it removes weights: write a callback of your own with changes_training = True",
    "SpikeDetection": "it leaves out batches: set trainer.diverge_factor, which ends a run as diverged",
    "ModelSummary": "ablate plan prints the parameters",
    "RichModelSummary": "ablate plan prints the parameters",
    "ProgressBar": "train and sweep show their progress",
    "RichProgressBar": "train and sweep show their progress",
    "TQDMProgressBar": "train and sweep show their progress",
    "BasePredictionWriter": "a run makes no predictions: ablate evaluate scores what was trained",
    "LambdaCallback": "functions cannot stand in a configuration: write a callback of your own in a plugin",
}
"""Callback of Lightning -> why it is not taken, and what to do instead."""


class Callbacks(Registry[CallbackConfig]):
    """The registry of callbacks. It says of Lightning's own that it does not take what takes their place."""

    def parse(self, value: Any) -> CallbackConfig:
        name = value.get("kind") if isinstance(value, Mapping) else value
        if isinstance(name, str) and name in REFUSED and name not in self:
            text = "{name} is not taken: {reason}"
            raise PydanticCustomError("refused_kind", text, {"name": name, "reason": REFUSED[name]})
        return super().parse(value)


callbacks: Callbacks = Callbacks("callback", CallbackConfig)


class LightningCallback(CallbackConfig):
    """A callback of `lightning.pytorch.callbacks`, by its name there; the fields are its arguments."""

    def build(self) -> Callback:
        from lightning.pytorch import callbacks as lightning_callbacks

        fields = {name: getattr(self, name) for name in type(self).model_fields if name != "kind"}
        callback: Callback = getattr(lightning_callbacks, self.kind)(**fields)
        return callback


@callbacks.register
class LearningRateMonitor(LightningCallback):
    """Lightning's LearningRateMonitor: the learning rate of each group of parameters."""

    kind: Literal["LearningRateMonitor"] = "LearningRateMonitor"
    log_momentum: bool = False
    """Whether to log the momentum too."""
    log_weight_decay: bool = False
    """Whether to log the weight decay too."""


@callbacks.register
class DeviceStatsMonitor(LightningCallback):
    """Lightning's DeviceStatsMonitor: memory and use of the device, before and after a batch."""

    library = "psutil"
    extra = "system"

    kind: Literal["DeviceStatsMonitor"] = "DeviceStatsMonitor"
    cpu_stats: bool | None = None
    """Whether to log the use of the CPU. None: of a run on the CPU."""


@callbacks.register
class ThroughputMonitor(LightningCallback):
    """Lightning's ThroughputMonitor: batches and samples per second over the last batches, of training and of
    validation."""

    kind: Literal["ThroughputMonitor"] = "ThroughputMonitor"
    window_size: int = Field(100, gt=1, le=MOST_STEPS)
    """Batches of the moving window."""

    def build(self) -> Callback:
        from lightning.pytorch.callbacks import ThroughputMonitor as Monitor

        return Monitor(batch_size_fn=lambda batch: len(batch[0]), window_size=self.window_size)
