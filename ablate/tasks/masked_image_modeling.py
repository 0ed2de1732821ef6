"""Masked image modelling: MAE (He et al. 2022, arXiv 2111.06377)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ablate.config.bounds import MOST_LAYERS, MOST_WIDTH
from ablate.config.errors import ConfigError, Problem
from ablate.config.lazy import postpone_imports, torch
from ablate.data import Corpus, DataConfig
from ablate.models import ModelConfig
from ablate.tasks.base import Metric, Task, tasks

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import MetricCollection

    from ablate.models import Model

with postpone_imports():
    from ablate.tasks import heads

PATTERNS = 64
"""The number of masks for validation. The content of an image selects its mask, so it is the same in every validation
of every run."""
COUNTED = 256
"""The number of validation images on which the trivial loss is measured."""


@tasks.register
class MaskedImageModeling(Task):
    """Reconstructs the masked patches of an image, as MAE does: the layers see only the other patches, and a small
    decoder predicts the pixels of all; the loss is the mean squared error over the masked patches.

    Inputs are images, float [batch, channels, height, width], of any image data, whose targets are not used. Masks are
    drawn at random in training, from the run's own random numbers, and are fixed in validation. What is learned is
    compared after fine-tuning: a run that starts by `warm_start` with `copy: [embedding, layers, final_norm]`.
    """

    kind: Literal["masked_image_modeling"] = "masked_image_modeling"
    mask_ratio: float = Field(0.75, gt=0, lt=1)
    """The share of the patches that is masked."""
    norm_pixels: bool = True
    """Whether the pixels of each patch are normalised by their mean and standard deviation before they are predicted.
    """
    decoder_hidden: int = Field(32, gt=0, le=MOST_WIDTH)
    """Width of the decoder."""
    decoder_layers: int = Field(1, ge=0, le=MOST_LAYERS)
    """Number of layers of the decoder, which are Pre-LN for every placement."""
    decoder_heads: int = Field(4, gt=0, le=MOST_WIDTH)
    """Number of the decoder's attention heads."""

    inputs = "images"
    unit = "images"
    sample = "image"
    needs_head = True
    learns_from = "any images: the masked patches are predicted"
    metrics = (Metric("loss", "squared error per pixel", "in squared error", bounds=(0.0, math.inf), further=True),)

    def accepts(self, data: DataConfig) -> bool:
        return data.default_task in tasks and tasks[data.default_task].inputs == "images"

    def validate(self, model: ModelConfig, data: DataConfig) -> list[Problem]:  # type: ignore[override]
        if self.decoder_hidden % self.decoder_heads:
            text = f"must divide task.decoder_hidden ({self.decoder_hidden})"
            return [Problem("task.decoder_heads", text, self.decoder_heads)]
        return []

    def count_kept(self, patches: int) -> int:
        """Return the number of visible patches of an image: at least one, and at least one is masked."""
        return min(max(1, round(patches * (1 - self.mask_ratio))), max(1, patches - 1))

    def count_passes(self, model: ModelConfig, shape: tuple[int, ...]) -> float:
        """Return the share of the tokens that the layers see. The decoder is counted with the same number of tokens."""
        tokens, patches = model.sequence_length(shape), _count_patches(model, shape)
        return (tokens - patches + self.count_kept(patches)) / tokens

    def adapt(self, model: Model, classes: int, shape: tuple[int, ...]) -> None:
        config: Any = model.config
        patches, outputs = _count_patches(config, shape), shape[0] * config.patch_size**2
        if patches < 2:
            text = (
                f"makes one patch of an image of {shape[1]} x {shape[2]}, and one that is seen and one that is masked"
            )
            raise ConfigError([Problem("model.patch_size", f"{text} are needed: make it smaller", config.patch_size)])
        size = (config.hidden, self.decoder_hidden, self.decoder_layers, self.decoder_heads)
        model.attach_head(heads.MaskedDecoder(*size, patches, outputs))

    def read_inputs(self, model: ModelConfig, state: Mapping[str, Tensor], length: int) -> tuple[int, tuple[int, ...]]:
        return 0, model.input_shape(state, length)

    def build_batch(self, size: int, shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
        return torch.empty((size, *shape)), torch.empty(size, dtype=torch.int64)

    def compute_loss(self, model: Any, inputs: Tensor, targets: Any) -> Tensor:
        patches = _count_patches(model.config, inputs.shape[1:])
        return self.compute_masked_loss(model, inputs, torch.rand(len(inputs), patches, device=inputs.device))

    def compute_masked_loss(self, model: Any, images: Tensor, noise: Tensor) -> Tensor:
        """Return the mean squared error over the masked patches; those with the smallest `noise` [batch, patches] are
        visible."""
        kept = noise.argsort(1)[:, : self.count_kept(noise.shape[1])]
        wanted = self.cut_patches(images, model.config.patch_size)
        errors = (model(images, kept).float() - wanted).square().mean(-1)
        masked = torch.ones_like(errors).scatter(1, kept, 0.0)
        return (errors * masked).sum() / masked.sum()

    def cut_patches(self, images: Tensor, patch_size: int) -> Tensor:
        """Return the predictions [batch, patches, channels * patch_size^2], float32."""
        patches = torch.nn.functional.unfold(images.float(), patch_size, stride=patch_size).transpose(1, 2)
        if not self.norm_pixels:
            return patches
        return (patches - patches.mean(-1, keepdim=True)) / (patches.var(-1, keepdim=True) + 1e-6).sqrt()

    def validate_batch(self, model: Any, inputs: Tensor, targets: Any, metrics: MetricCollection | None) -> Tensor:
        patches = _count_patches(model.config, inputs.shape[1:])
        patterns = torch.rand(PATTERNS, patches, generator=torch.Generator().manual_seed(0)).to(inputs.device)
        shown = (inputs.float() * 255).round().long().flatten(1).sum(1) % PATTERNS
        return self.compute_masked_loss(model, inputs, patterns[shown])

    def initial_loss(self, classes: int) -> float:
        return 1.0

    def measure_trivial_loss(self, corpus: Corpus, model: ModelConfig) -> float | None:
        """Return the loss of predicting 0 everywhere, on some validation images: with normalised pixels this is the
        mean of each patch."""
        count, config = min(COUNTED, len(corpus.val)), dict(model)
        images, _ = corpus.val.__getitems__([number * len(corpus.val) // count for number in range(count)])
        return float(self.cut_patches(images, config["patch_size"]).square().mean())


def _count_patches(model: Any, shape: Any) -> int:
    """Return the number of patches of an image."""
    _, height, width = shape
    return int((height // model.patch_size) * (width // model.patch_size))
