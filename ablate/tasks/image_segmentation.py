"""Image segmentation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ablate.config.lazy import postpone_imports, torch
from ablate.data import IGNORED, Corpus
from ablate.models import ModelConfig
from ablate.tasks.base import Metric, Task, count_unpadded, tasks

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import MetricCollection

    from ablate.models import Model

with postpone_imports():
    from ablate.tasks import heads

_WEIGHT = "head.pixels.weight"


@tasks.register
class ImageSegmentation(Task):
    """Predicts the class of each pixel. Inputs are images, float [batch, channels, height, width], targets masks, int64
    [batch, height, width], `IGNORED` for pixels without a class.

    The model's head is one linear layer with outputs for each pixel of a patch (`SubPixelHead`). The loss is the
    cross-entropy over all pixels. `val/mean_iou` is the mean over the classes of intersection over union, each over all
    pixels of the validation set; a class that is neither there nor predicted is left out. `val/pixel_accuracy` is the
    share of pixels that are right.
    """

    kind: Literal["image_segmentation"] = "image_segmentation"

    inputs = "images"
    unit = "images"
    sample = "image"
    needs_head = True
    learns_from = "a mask with the class of each pixel"
    objective = "val/mean_iou"
    metrics = (
        Metric("loss", "nats per pixel", "nats", bounds=(0.0, math.inf), further=True),
        Metric("mean_iou", "mean over classes", maximize=True, bounds=(0.0, 1.0)),
        Metric("pixel_accuracy", "share of pixels", maximize=True, bounds=(0.0, 1.0)),
    )

    def adapt(self, model: Model, classes: int, shape: tuple[int, ...]) -> None:
        config: Any = model.config
        model.attach_head(heads.SubPixelHead(config.hidden, classes, config.patch_size, shape))

    def read_inputs(self, model: ModelConfig, state: Mapping[str, Tensor], length: int) -> tuple[int, tuple[int, ...]]:
        config: Any = model
        name = next((name for name in state if name.endswith(_WEIGHT)), _WEIGHT)
        return len(state[name]) // config.patch_size**2, model.input_shape(state, length)

    def build_batch(self, size: int, shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
        return torch.empty((size, *shape)), torch.empty((size, *shape[1:]), dtype=torch.int64)

    def count_positions(self, inputs: Tensor, targets: Tensor) -> int:
        return targets.numel()

    def count_targets(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return count_unpadded(targets)

    def compute_loss(self, model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        return _sum_cross_entropy(model(inputs), targets) / targets.numel()

    def measure_trivial_loss(self, corpus: Corpus, model: ModelConfig) -> float | None:
        return corpus.measure_trivial_loss()

    def build_metrics(self, corpus: Corpus) -> MetricCollection:
        from torchmetrics import MetricCollection
        from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

        return MetricCollection(
            {
                "mean_iou": MulticlassJaccardIndex(corpus.classes, average="macro", ignore_index=IGNORED),
                "pixel_accuracy": MulticlassAccuracy(corpus.classes, average="micro", ignore_index=IGNORED),
            },
            compute_groups=False,
        )

    def validate_batch(self, model: Any, inputs: Tensor, targets: Tensor, metrics: MetricCollection | None) -> Tensor:
        logits = model(inputs)
        if metrics is not None:
            metrics.update(logits.argmax(1), targets)
        return _sum_cross_entropy(logits, targets) / targets.numel()


def _sum_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy summed over all pixels that have a class, float32."""
    return torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum", ignore_index=IGNORED)
