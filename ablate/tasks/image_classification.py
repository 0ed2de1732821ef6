"""Image classification."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from ablate.config.errors import ConfigError
from ablate.data import Corpus
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.models import Model
from ablate.tasks.base import Compiled, Task
from ablate.tasks.losses import classify
from ablate.tasks.metrics import ACCURACY, ACCURACY_TOP5


class ImageClassification(Task):
    """Reports `val/accuracy`, the share of images whose most probable class is correct, and with more than five classes
    `val/accuracy_top5`, the share of images whose class is among the five most probable.

    Training targets are classes [batch], or class probabilities [batch, classes] if images are mixed or labels
    smoothed; the training loss is the cross-entropy with these targets. Validation targets are classes.
    """

    unit = "images"

    def __init__(
        self, experiment: Experiment, corpus: Corpus, compiled: Compiled = False, model: Model | None = None
    ) -> None:
        super().__init__(experiment, corpus, compiled, model)
        batch = experiment.trainer.batch_size // (experiment.trainer.accumulate * ranks.world_size())
        if problems := experiment.data.validate(batch):
            raise ConfigError(problem.within("data") for problem in problems)
        guesses = {f"val/{ACCURACY}": 1} | ({f"val/{ACCURACY_TOP5}": 5} if corpus.classes > 5 else {})
        self.accuracies = MetricCollection(
            {name: MulticlassAccuracy(corpus.classes, top_k=k, average="micro") for name, k in guesses.items()},
            compute_groups=False,
        )

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return classify(self.model, inputs, targets)

    def compute_validation_loss(self, inputs: Tensor, targets: Tensor, further: bool) -> Tensor:
        logits = self.model(inputs).float()
        if not further:
            self.accuracies.update(logits, targets)
        return F.cross_entropy(logits, targets)

    def compute_metrics(self, loss: float) -> dict[str, float]:
        metrics = {name: value.item() for name, value in self.accuracies.compute().items()}
        self.accuracies.reset()
        return metrics
