"""Image classification."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from ablate.config.lazy import torch
from ablate.data import IGNORED, Corpus
from ablate.models import ModelConfig
from ablate.tasks.base import Metric, Task, count_unpadded, tasks

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import MetricCollection


@tasks.register
class ImageClassification(Task):
    """Predicts the class of an image. Inputs are images, float [batch, channels, height, width].

    Training targets are classes, int64 [batch], `IGNORED` for an image without one, or their probabilities [batch,
    classes] where images are mixed or labels smoothed; the loss is the cross-entropy with those. Validation targets are
    classes. `val/accuracy` is the
    share of images whose most probable class is correct, `val/accuracy_top5`, reported with more than five classes, the
    share of those whose class is among the first five guesses.
    """

    kind: Literal["image_classification"] = "image_classification"

    inputs = "images"
    unit = "images"
    sample = "image"
    classifies = True
    learns_from = "the class of an image"
    metrics = (
        Metric("loss", "nats per image", "nats", bounds=(0.0, math.inf), further=True),
        Metric("accuracy", "share of images", maximize=True, bounds=(0.0, 1.0), counts_samples=True),
        Metric("accuracy_top5", "share of images", maximize=True, bounds=(0.0, 1.0), counts_samples=True),
    )

    def build_batch(self, size: int, shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
        return torch.empty((size, *shape)), torch.empty(size, dtype=torch.int64)

    def count_targets(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return super().count_targets(inputs, targets) if targets.is_floating_point() else count_unpadded(targets)

    def compute_loss(self, model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        # the function comes before the model: finding it in a LazyModule ends a compiled graph
        return torch.nn.functional.cross_entropy(
            model(inputs).float(), targets, reduction="sum", ignore_index=IGNORED
        ) / len(targets)

    def measure_trivial_loss(self, corpus: Corpus, model: ModelConfig) -> float | None:
        return corpus.measure_trivial_loss()

    def build_metrics(self, corpus: Corpus) -> MetricCollection:
        from torchmetrics import MetricCollection
        from torchmetrics.classification import MulticlassAccuracy

        guesses = {"accuracy": 1} | ({"accuracy_top5": 5} if corpus.classes > 5 else {})
        ignored = IGNORED if corpus.padded else None  # looking for it, a GPU waits
        return MetricCollection(
            {
                name: MulticlassAccuracy(corpus.classes, top_k=k, average="micro", ignore_index=ignored)
                for name, k in guesses.items()
            },
            compute_groups=False,
        )

    def validate_batch(self, model: Any, inputs: Tensor, targets: Tensor, metrics: MetricCollection | None) -> Tensor:
        logits = model(inputs).float()
        if metrics is not None:
            metrics.update(logits, targets)
        return self.compute_loss(lambda _: logits, inputs, targets)

    def sum_losses(self, model: Any, forward: Any, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = forward(inputs).float()
        loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
        return loss, (logits.argmax(-1) == targets).sum(), count_unpadded(targets)
