"""The exponential moving average of the weights, validated in addition to the weights themselves."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils import _pytree as pytree

from ablate.data import Corpus
from ablate.experiment.tree import name_average
from ablate.training.module import TrainingModule


class WeightAverage(Callback):
    """Keeps, by timm's ModelEmaV3, average <- decay * average + (1 - decay) * weights after every update, starting from
    the initial weights. Training is not affected. Each validation uses both: `val/loss` and so on for the weights,
    `val/ema/loss` and so on for the average. It comes before the callbacks that read `val_metrics` and that write
    checkpoints, which contain the exact average.
    """

    def __init__(self, module: TrainingModule, corpus: Corpus, decay: float) -> None:
        from timm.utils import ModelEmaV3

        self.module = TrainingModule(module.experiment, corpus, model=module.model)
        self.ema = ModelEmaV3(module.model, decay=decay)  # a copy
        self.module.model = self.ema.module
        self.module.eval()
        self.updates = -1  # that the average includes; -1: there is none yet

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "weights": self.ema.module.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.updates = state_dict["updates"]
        self.ema.module.load_state_dict(state_dict["weights"])

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0 or self.updates < 0:
            self.module.to(pl_module.device)
        if self.updates < 0:  # not earlier: a placement may set weights from the first batch
            self.ema.set(pl_module.model)
            self.updates = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step > self.updates:  # otherwise gradients are being accumulated
            self.ema.update(pl_module.model)
            self.updates = trainer.global_step

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.module.to(pl_module.device)
        self.module.on_validation_epoch_start()

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        inputs, targets = batch
        # of a bf16-true run, whose images are in bfloat16, the average is still float32
        dtype = next(self.ema.module.parameters()).dtype
        inputs = pytree.tree_map(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, inputs)
        with trainer.precision_plugin.val_step_context():
            self.module.validation_step((inputs, targets), batch_idx, dataloader_idx)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        self.module.on_validation_epoch_end()
        pl_module.val_metrics |= {name_average(name): value for name, value in self.module.val_metrics.items()}
