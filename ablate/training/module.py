"""The LightningModule that trains every task: loss, compiled or not, optimizer, schedule, and validation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils import _pytree as pytree

from ablate.config.errors import ConfigError
from ablate.data import Corpus
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.models import Model
from ablate.models.base import strip_wrapper
from ablate.optim.optimizers import build_optimizer
from ablate.parallel.compiling import CompiledParts
from ablate.tasks.base import count_samples
from ablate.training.program_check import check_program


class TrainingModule(LightningModule):
    """Trains `model` on the batches of the experiment's task, which says what their loss and metrics are.

    Nothing is logged from here (every `self.log` costs a third of a millisecond); callbacks read what they need. After
    a validation, `val_metrics` holds its results.

    Where targets are padded, the loss of an update is the mean over all its targets but padding, whatever ranks and
    accumulated batches they are in. How many there are is known only when all of them have been through: until then
    each loss is a sum over the number of positions, and the gradient is scaled before the update. An update without any
    target has no loss, and its gradient is zero: the optimizer makes it with its momentum and weight decay alone, so
    that schedule, order of the data and resumption do not depend on what the targets are.
    """

    def __init__(
        self, experiment: Experiment, corpus: Corpus, compiled: bool = False, model: Model | None = None
    ) -> None:
        super().__init__()
        batch = experiment.trainer.batch_size // (experiment.trainer.accumulate * ranks.world_size())
        if problems := experiment.data.validate(batch):
            raise ConfigError(problem.within("data") for problem in problems)
        self.experiment, self.task = experiment, experiment.task
        self.model = model or experiment.build_model(corpus.classes, corpus.shape)
        self.corpus = corpus
        self.unit = self.task.unit
        self.per_item = self.task.count_items(corpus.shape)  # units in one sample
        self.copied: frozenset[str] = frozenset()
        """Parameters that a warm start has given their values, which no placement changes before the first update."""
        self.val_metrics: dict[str, float] = {}
        self.compiled = compiled
        self._parts = CompiledParts(self.model) if compiled else None
        self.train_loss_scale: float | Tensor = 1.0
        """Factor from the mean loss of the ranks and accumulated batches to the loss of the last update; 0 if that had
        no targets, and so has no loss."""
        self._counts: list[Tensor] = []  # of the batches accumulated so far: targets but padding
        self._positions = 0  # and with padding
        self.metrics = self.task.build_metrics(corpus)
        self._sums = torch.zeros(1 + len(corpus.val_sets), 2, dtype=torch.float64)  # losses and targets of each set

    def loss(self, inputs: Any, targets: Any) -> Tensor:
        """Return the loss of a batch: the sum over its targets, divided by its positions, float32."""
        return self.task.compute_loss(self.model, inputs, targets)

    def training_step(self, batch: tuple[Any, Any], batch_idx: int) -> Tensor:
        if self.corpus.padded:
            self._counts.append(self.task.count_targets(*batch))
            self._positions += self.task.count_positions(*batch)
        return self._compute_compiled(batch)

    def _compute_compiled(self, batch: tuple[Any, Any]) -> Tensor:
        """Return the loss of a batch, by programs if the run is compiled."""
        if self._parts:
            with self._parts.run():
                return self.loss(*batch)
        return self.loss(*batch)

    def on_after_backward(self) -> None:
        if not self.corpus.padded or len(self._counts) < self.experiment.trainer.accumulate:
            return
        targets = ranks.total(torch.stack(self._counts).sum().to(self.device))
        self.train_loss_scale = torch.where(targets > 0, self._positions * ranks.world_size() / targets, 0.0)
        self._counts.clear()
        self._positions = 0
        for gradients in ranks.group_by_mesh(p.grad for p in self.parameters() if p.grad is not None):
            torch._foreach_mul_(gradients, self.train_loss_scale)

    def on_validation_epoch_start(self) -> None:
        self._sums = torch.zeros_like(self._sums, device=self.device)

    def validation_step(self, batch: tuple[Any, Any], batch_idx: int, dataloader_idx: int = 0) -> None:
        inputs, targets = batch
        if not count_samples(inputs):  # a rank with fewer items than batches computes with the others' weights
            self.task.run_blank(self.model, inputs)
            return
        metrics = self.metrics if dataloader_idx == 0 else None
        loss = self.task.validate_batch(self.model, inputs, targets, metrics).double()
        total, count = loss * self.task.count_positions(inputs, targets), self.task.count_targets(inputs, targets)
        self._sums[dataloader_idx] += torch.stack([total, count.to(total)])

    def on_validation_epoch_end(self) -> None:
        """Compute the true mean over all targets but padding, however they were batched, and the task's own metrics."""
        total, count = ranks.total(self._sums).unbind(1)
        loss, *further = (total / count).tolist()
        own = self.task.compute_metrics(loss, self.metrics, self.corpus.bytes_per_token)
        self.val_metrics = {f"val/{name}": value for name, value in {"loss": loss, **own}.items()}
        if self.metrics is not None:
            self.metrics.reset()
        for (name, part), mean in zip(self.corpus.val_sets.items(), further, strict=True):
            metrics = {"loss": mean, **self.task.compute_metrics(mean, None, part.bytes_per_token)}
            self.val_metrics |= {f"val/{name}/{metric}": value for metric, value in metrics.items()}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the norm of the whole gradient. Lightning refuses to with a fused optimizer under autocast, for the
        sake of float16's loss scaling, which bfloat16 does not have."""
        if gradient_clip_val:
            ranks.clip_gradients(self.parameters(), gradient_clip_val)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """Make an update, and what the placement and the model do after one."""
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        self.experiment.after_update(self.model, self.global_step + 1)

    def configure_model(self) -> None:
        """Share the model among the ranks, where the strategy does that."""
        if shard := getattr(self.trainer.strategy, "shard", None):
            shard(self.model)

    def on_train_start(self) -> None:
        """Set what the placement takes from the first batch; a resumed run has it in its checkpoint. A copy that decays
        goes on from the checkpoint of a longer run, whose next rate differs. A compiled run compares its program
        with the model."""
        for config in self.trainer.lr_scheduler_configs:
            schedule: Any = config.scheduler
            rates = zip(schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True)
            for group, base, factor in rates:
                group["lr"] = base * factor(schedule.last_epoch)
        if self.global_step == 0:
            named = self.model.named_parameters()
            copies = [(p, p.detach().clone()) for name, p in named if strip_wrapper(name) in self.copied]
            self.experiment.norm.prepare(self.model, lambda: self._first_batch()[0])
            with torch.no_grad():
                for parameter, value in copies:
                    parameter.copy_(value)
            self.experiment.after_update(self.model, 0)
            ranks.unify(self.model)  # a placement may have looked at one rank's part of the batch alone
        if self.compiled or getattr(self.trainer.strategy, "compiled", False):
            self._check_program()

    def _first_batch(self, with_targets: bool = False) -> Any:
        """Return the next batch of training; of the next ten, the first that has targets."""
        loaders: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        for batch in islice(loaders.train_dataloader(), 10):
            if not with_targets or self.task.count_targets(*batch):
                break
        batch = pytree.tree_map(lambda tensor: tensor.to(self.device), tuple(batch))
        return self.trainer.precision_plugin.convert_input(batch)

    def _check_program(self) -> None:
        batch, context = self._first_batch(with_targets=True), self.trainer.precision_plugin.train_step_context

        def compute(loss: Callable[[Any], Tensor]) -> Tensor:
            with context():
                return loss(batch)

        eager, compiled = partial(compute, lambda batch: self.loss(*batch)), partial(compute, self._compute_compiled)
        check_program(self.model, eager, compiled, str(self.trainer.precision))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the experiment to the checkpoint."""
        checkpoint["experiment"] = self.experiment.to_tree()

    def configure_optimizers(self) -> Any:
        optimizer = build_optimizer(self.experiment.optimizer, self.model)
        schedule = self.experiment.schedule.build(optimizer, self.experiment.trainer.max_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
