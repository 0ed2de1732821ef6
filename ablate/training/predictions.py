"""A figure of what a trained model makes of a few validation samples, logged when a run ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils import _pytree as pytree

from ablate.plots.drawing import save_png
from ablate.tracking.tracker import Tracker
from ablate.training.callbacks import RunCallback
from ablate.training.module import TrainingModule

if TYPE_CHECKING:
    from ablate.plots.figure import Figure

SHOWN = 4
"""Validation samples in the figure, evenly spread over the set."""


class Predictions(RunCallback):
    """Has the task draw its predictions after the last validation; all ranks compute them together."""

    def __init__(self) -> None:
        self.figure: Figure | None = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        if trainer.global_step < pl_module.experiment.trainer.max_steps:
            return
        data = pl_module.corpus.val
        count = min(SHOWN, len(data))
        batch = data.__getitems__([number * len(data) // count for number in range(count)])
        batch = pytree.tree_map(lambda tensor: tensor.to(pl_module.device), batch)
        inputs, targets = trainer.precision_plugin.convert_input(batch)
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            self.figure = pl_module.task.draw_predictions(pl_module.model, inputs, targets, pl_module.corpus)

    def publish(self, folder: Path, tracker: Tracker) -> None:
        """Write the figure into the run."""
        if self.figure is not None:
            tracker.log_file(save_png(self.figure, folder), "")
