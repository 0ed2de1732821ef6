"""Downstream tasks during training."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from ablate import tracking
from ablate.addons.evaluation.scoring import score
from ablate.addons.evaluation.tasks import load_tasks
from ablate.data.text.tokenizers import load_data_tokenizer
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.tracking.scores import name_metrics
from ablate.training.callbacks import Curves, RunCallback
from ablate.training.module import TrainingModule


class Downstream(RunCallback):
    """Every `evaluation.every_n_steps` updates and after the last: the scores on `evaluation.tasks`, as metrics
    `eval/TASK/METRIC`, which are also metrics of a validation after the same update. Training is not affected, and its
    clock is paused. Rank 0 evaluates. It comes before the callback that reads the metrics of a validation.

    Raises AblateError, before the first update, for an unknown task, missing data, or without the extra `eval`.
    """

    def __init__(self, experiment: Experiment, curves: Curves) -> None:
        self.config, self.curves = experiment.evaluation, curves
        self.last = -1  # updates before the last evaluation
        self.scores: dict[str, float] = {}  # of that
        self._model: _AsTrained | None = None
        self.tasks = load_tasks(self.config.tasks, self.config.task_data, self.config.shots, self.config.limit)
        self.tokenizer = load_data_tokenizer(experiment.data, tracking.cache_folder())

    def state_dict(self) -> dict[str, Any]:
        return {"last": self.last, "scores": self.scores}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.last, self.scores = state_dict["last"], state_dict["scores"]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        step, every = trainer.global_step, self.config.every_n_steps
        due = step == pl_module.experiment.trainer.max_steps or (every is not None and step % every == 0)
        if not due or step == self.last:  # after each of several accumulated batches the step is the same
            return
        self.last = step
        self.curves.on_validation_start(trainer, pl_module)
        self.scores = ranks.run_on_first(lambda: self._score(trainer, pl_module), slow=True)
        if step % pl_module.experiment.validation.interval and step < pl_module.experiment.trainer.max_steps:
            self.curves.record(trainer, self.scores)  # after other updates they are recorded with the validation

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        if self.last == trainer.global_step:
            pl_module.val_metrics |= self.scores

    def _score(self, trainer: Trainer, module: TrainingModule) -> dict[str, float]:
        """Return the scores of the model, in the arithmetic of its training, compiled where the run is."""
        if self._model is None:
            self._model = _AsTrained(module, trainer)
        data: Any = module.experiment.data
        config = self.config
        options: dict[str, Any] = {"length": data.seq_len, "limit": config.limit, "batch_size": config.batch_size}
        scores = score(self._model, self.tokenizer, self.tasks, **options)
        return name_metrics({name: own.metrics for name, own in scores.items()})


class _AsTrained(nn.Module):
    """The model of a task in the precision of its validations, compiled if its loss is."""

    def __init__(self, module: TrainingModule, trainer: Trainer) -> None:
        super().__init__()
        self.model, self.context = module.model, trainer.precision_plugin.val_step_context
        # as a function, which is no part of this module; for any length, since those of questions differ
        self.compute: Any = (
            torch.compile(module.model.__call__, dynamic=True) if module.compiled else module.model.__call__
        )

    def forward(self, tokens: Tensor) -> Tensor:
        with self.context():
            logits: Tensor = self.compute(tokens)
            return logits
