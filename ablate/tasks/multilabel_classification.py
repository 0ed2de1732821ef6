"""Multi-label classification of images."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ablate.config.lazy import torch
from ablate.data import Corpus
from ablate.models import ModelConfig
from ablate.tasks.base import Metric, Task, tasks

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import MetricCollection


@tasks.register
class MultilabelClassification(Task):
    """Predicts the labels of an image, of which there may be any number. Inputs are images, float [batch, channels,
    height, width], targets 0 or 1 for each label, float [batch, classes].

    The loss is the binary cross-entropy, a mean over images and labels. `val/mean_average_precision` is the mean over
    labels of the area under the curve of precision against recall, `val/macro_f1` the mean F1 at a probability of one
    half.
    """

    kind: Literal["multilabel_classification"] = "multilabel_classification"

    inputs = "images"
    unit = "images"
    sample = "image"
    learns_from = "any number of labels of an image"
    objective = "val/mean_average_precision"
    metrics = (
        Metric("loss", "nats per label", "nats", bounds=(0.0, math.inf), further=True),
        Metric("mean_average_precision", "mean over labels", maximize=True, bounds=(0.0, 1.0)),
        Metric("macro_f1", "mean over labels", maximize=True, bounds=(0.0, 1.0)),
    )

    def build_batch(self, size: int, shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
        return torch.empty((size, *shape)), torch.empty(size, classes)

    def compute_loss(self, model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(model(inputs).float(), targets.float())

    def initial_loss(self, classes: int) -> float:
        return math.log(2)

    def measure_trivial_loss(self, corpus: Corpus, model: ModelConfig) -> float | None:
        """Return the loss of predicting each label by its frequency in training, smoothed by Laplace's rule."""
        train, val = (getattr(data, "labels", None) for data in (corpus.train, corpus.val))
        if train is None or val is None or not len(train) or not len(val):
            return None
        share = (train.sum(0).double().numpy() + 1) / (len(train) + 2)
        there = val.double().mean(0).numpy()
        loss = float(-(there * np.log(share) + (1 - there) * np.log1p(-share)).mean())
        return min(loss, math.log(2))

    def build_metrics(self, corpus: Corpus) -> MetricCollection:
        from torchmetrics import MetricCollection
        from torchmetrics.classification import MultilabelAveragePrecision, MultilabelF1Score

        return MetricCollection(
            {
                "mean_average_precision": MultilabelAveragePrecision(corpus.classes, average="macro"),
                "macro_f1": MultilabelF1Score(corpus.classes, average="macro"),
            },
            compute_groups=False,
        )

    def validate_batch(self, model: Any, inputs: Tensor, targets: Tensor, metrics: MetricCollection | None) -> Tensor:
        logits = model(inputs).float()
        if metrics is not None:
            metrics.update(logits.sigmoid(), targets.long())
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, targets.float())
