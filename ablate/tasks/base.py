"""The LightningModule that all tasks share: the loss that may be compiled, optimizer, schedule, and validation."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from ablate.data import IGNORED, Corpus, ValSet
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.models import Model
from ablate.models.base import strip_wrapper
from ablate.tasks import gradients
from ablate.tasks.metrics import LOSS

Compiled = Literal["reduce-overhead"] | bool
"""Whether the loss is compiled, and with CUDA graphs."""


class Task(LightningModule):
    """Trains `model` on (inputs, targets) batches by cross-entropy in float32.

    A subclass says what its `loss` is, and adds metrics in `compute_validation_loss` and
    `compute_metrics` (their names: `ablate.tasks.metrics`).
    Nothing is logged from here (every `self.log` costs a third of a millisecond); callbacks read what they need. After
    a validation, `val_metrics` holds its results.
    """

    unit: ClassVar[str]
    """What a rate or a count of the task is in: "tokens" or "images"."""

    def __init__(
        self, experiment: Experiment, corpus: Corpus, compiled: Compiled = False, model: Model | None = None
    ) -> None:
        super().__init__()
        self.experiment = experiment
        self.model = model or experiment.model.build(experiment.norm, experiment.init, corpus.classes, corpus.shape)
        self.classes = corpus.classes
        self.per_item = corpus.items_per_sample  # units in one sequence or image
        self.copied: frozenset[str] = frozenset()
        """Parameters that a warm start has given their values, which no placement changes before the first update."""
        self.val_metrics: dict[str, float] = {}
        self.compiled = bool(compiled)
        self._graphs = compiled == "reduce-overhead"
        mode = "reduce-overhead" if self._graphs else None
        self._loss = torch.compile(self.loss, mode=mode) if compiled else self.loss
        self.val_sets = dict(corpus.val_sets)
        self.train_loss_scale: float | Tensor = 1.0
        """What the mean loss of the ranks and accumulated batches is multiplied by to be that of the last update."""
        self._sums = torch.zeros(1 + len(self.val_sets), 2, dtype=torch.float64)  # losses and targets of each set

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy over all targets, in nats, float32; padding adds nothing and counts."""
        raise NotImplementedError

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        if not self._graphs:
            return self._loss(*batch)
        self.zero_grad()  # the last gradients lie where the graphs are about to write
        torch.compiler.cudagraph_mark_step_begin()
        return self._loss(*batch).clone()  # which the next step would write over

    def on_validation_epoch_start(self) -> None:
        self._sums = torch.zeros_like(self._sums, device=self.device)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        inputs, targets = batch
        if not len(inputs):  # a rank with fewer items than batches: it computes with the others, whose weights it has
            self.model(inputs.new_zeros(1, *inputs.shape[1:]))
            return
        loss = self.compute_validation_loss(inputs, targets, further=dataloader_idx > 0).double() * targets.numel()
        self._sums[dataloader_idx] += torch.stack([loss, (targets != IGNORED).sum()])

    def compute_validation_loss(self, inputs: Tensor, targets: Tensor, further: bool) -> Tensor:
        """Return the `loss` of a validation batch, eager; of the validation set itself, not a `further` one, the task
        measures its own metrics as well."""
        return self.loss(inputs, targets)

    def on_validation_epoch_end(self) -> None:
        """Compute the true mean over all targets but padding, however they were batched, and the task's own metrics."""
        total, count = ranks.total(self._sums).unbind(1)
        loss, *further = (total / count).tolist()
        self.val_metrics = {f"val/{LOSS}": loss, **self.compute_metrics(loss)}
        for (name, part), mean in zip(self.val_sets.items(), further, strict=True):
            metrics = {LOSS: mean, **self.compute_further_metrics(mean, part)}
            self.val_metrics |= {f"val/{name}/{metric}": value for metric, value in metrics.items()}

    def compute_metrics(self, loss: float) -> dict[str, float]:
        """Return the task's metrics over the whole validation set, and reset them."""
        raise NotImplementedError

    def compute_further_metrics(self, loss: float, part: ValSet) -> dict[str, float]:
        """Return the task's metrics of the loss on a further validation set."""
        return {}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the norm of the whole gradient. Lightning refuses to with a fused optimizer under autocast, for the
        sake of float16's loss scaling, which bfloat16 does not have."""
        if gradient_clip_val:
            gradients.clip(self.parameters(), gradient_clip_val)

    def configure_model(self) -> None:
        """Share the model among the ranks, where the strategy does that."""
        if shard := getattr(self.trainer.strategy, "shard", None):
            shard(self.model)

    def on_train_start(self) -> None:
        """Set what the placement takes from the first batch; a resumed run has it in its checkpoint."""
        if self.global_step == 0:
            named = self.model.named_parameters()
            copies = [(p, p.detach().clone()) for name, p in named if strip_wrapper(name) in self.copied]
            self.experiment.norm.prepare(self.model, self._first_inputs)
            with torch.no_grad():
                for parameter, value in copies:
                    parameter.copy_(value)
            ranks.unify(self.model)  # a placement may have looked at one rank's part of the batch alone

    def _first_inputs(self) -> Tensor:
        loaders: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        inputs, _ = next(iter(loaders.train_dataloader()))
        converted: Tensor = self.trainer.precision_plugin.convert_input(inputs.to(self.device))
        return converted

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the experiment to the checkpoint."""
        checkpoint["experiment"] = self.experiment.to_tree()

    def configure_optimizers(self) -> Any:
        optimizer = self.experiment.optimizer.build(self.model)
        schedule = self.experiment.schedule.build(optimizer, self.experiment.trainer.max_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
