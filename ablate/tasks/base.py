"""What the LightningModules of all tasks share: the loss that may be compiled, optimizer, schedule, and validation."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor

from ablate import ranks
from ablate.config import Experiment
from ablate.data import Corpus


class Task(LightningModule):
    """Trains `model` on (inputs, targets) batches by cross-entropy in float32.

    A subclass adds its metrics in `new_metrics`, `measure` and `computed`. Nothing is logged from here (every
    `self.log` costs a third of a millisecond); callbacks read what they need. After a validation, `val_metrics` holds
    its results.
    """

    unit: ClassVar[str]
    """What a rate or a count of the task is in: "tokens" or "images"."""
    reports: ClassVar[tuple[str, ...]]
    """The metrics of a validation, which a sweep can compare."""

    def __init__(self, experiment: Experiment, corpus: Corpus, compiled: bool = False) -> None:
        super().__init__()
        self.experiment = experiment
        self.model = experiment.model.build(experiment.norm, experiment.init, corpus.classes, corpus.shape)
        self.classes = corpus.classes
        self.per_item = corpus.items_per_sample  # units in one sequence or image
        self.val_metrics: dict[str, float] = {}
        self._loss = torch.compile(self.loss) if compiled else self.loss
        self._loss_sum = torch.zeros((), dtype=torch.float64)
        self._count = 0

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy over all targets, in nats, float32."""
        return F.cross_entropy(self.model(inputs).float().flatten(0, -2), targets.flatten())

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self._loss(*batch)

    def on_validation_epoch_start(self) -> None:
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self._count = 0

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        inputs, targets = batch
        if not len(inputs):  # a rank with fewer items than batches
            return
        logits = self.model(inputs).float()
        losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
        self._loss_sum += losses.double().sum()
        self._count += losses.numel()
        self.measure(logits, targets)

    def on_validation_epoch_end(self) -> None:
        """The true mean over all targets, however they were batched, and the task's own metrics."""
        total, count = ranks.total(torch.stack([self._loss_sum, self._loss_sum.new_tensor(self._count)]))
        loss = (total / count).item()
        self.val_metrics = {"val/loss": loss, **self.computed(loss)}

    def measure(self, logits: Tensor, targets: Tensor) -> None:
        """Updates the task's metrics with one validation batch."""
        raise NotImplementedError

    def computed(self, loss: float) -> dict[str, float]:
        """The task's metrics over the whole validation set; resets them."""
        raise NotImplementedError

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips the norm of the whole gradient. Lightning refuses to with a fused optimizer under autocast, for the
        sake of float16's loss scaling, which bfloat16 does not have."""
        if gradient_clip_val:
            torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

    def on_train_start(self) -> None:
        """What the placement sets from the first batch; a run that goes on has it in its checkpoint."""
        if self.global_step == 0:
            self.experiment.norm.prepare(self.model, self._first_inputs)
            ranks.unify(self.model)  # a placement may have looked at one rank's part of the batch alone

    def _first_inputs(self) -> Tensor:
        loaders: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        inputs, _ = next(iter(loaders.train_dataloader()))
        return inputs.to(self.device)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint says what it is of."""
        checkpoint["experiment"] = self.experiment.to_tree()

    def configure_optimizers(self) -> Any:
        optimizer = self.experiment.optimizer.build(self.model)
        schedule = self.experiment.schedule.build(optimizer, self.experiment.trainer.max_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
