"""Image classification."""

from __future__ import annotations

from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy

from ablate.config import Experiment
from ablate.data import Corpus
from ablate.tasks.base import Task


class ImageClassification(Task):
    """Reports `val/accuracy`, the share of images whose first guess is right."""

    unit = "images"
    reports = ("val/loss", "val/accuracy")

    def __init__(self, experiment: Experiment, corpus: Corpus, compiled: bool = False) -> None:
        super().__init__(experiment, corpus, compiled)
        self.accuracy = MulticlassAccuracy(corpus.classes, average="micro")

    def measure(self, logits: Tensor, targets: Tensor) -> None:
        self.accuracy.update(logits, targets)

    def computed(self, loss: float) -> dict[str, float]:
        metrics = {"val/accuracy": self.accuracy.compute().item()}
        self.accuracy.reset()
        return metrics
