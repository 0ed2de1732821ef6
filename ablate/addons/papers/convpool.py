"""ConvPool-CNN-C: convolutions, max-pooling and a mean over positions. Its fields: `convpool_config`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.addons.papers.convpool_config import Convolution, ConvPool
from ablate.config.errors import ConfigError, Problem
from ablate.models.base import Model, build_bias, unwrap
from ablate.norms import Initialization, NormLayer, Placement, Projection, initialize
from ablate.norms.feature_maps import build_on_maps


class ConvLayer(nn.Module):
    """`phi(N(W x) + b)` of a convolution W, with phi a leaky ReLU, then max-pooling and dropout where the architecture
    has them. [batch, inputs, height, width] -> [batch, outputs, height, width], with other sides.

    N is over the positions of each channel or over the channels of each position (`ConvPool.norm_over`). Its gains and
    the biases b are one for each channel; a norm layer with a shift brings b, and b is zero at first.
    """

    def __init__(self, config: ConvPool, one: Convolution, layer: NormLayer, positions: int) -> None:
        super().__init__()
        self.positions, self.slope = positions, config.slope
        self.conv = nn.Conv2d(one.inputs, one.outputs, one.kernel, padding=one.padding, bias=False)
        self.norm = build_on_maps(layer, config.norm_over, one.outputs, positions)
        self.bias = build_bias(self.norm, one.outputs, after=2)
        pooled = nn.Sequential(nn.MaxPool2d(config.pool, 2), nn.Dropout(config.dropout))
        self.after = pooled if one.pooled else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(F.leaky_relu(self.bias(self.norm(self.conv(x))), self.slope))


class ConvPoolModel(Model):
    """Images [batch, channels, height, width] -> logits [batch, classes]: `N(V mean(y)) + c` of the outputs y of the
    last layer, with the mean over all positions."""

    config: ConvPool
    image_size: Tensor

    def __init__(
        self, config: ConvPool, norm: Placement, init: Initialization, classes: int, shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        channels, height, width = shape
        positions = list(config.iterate_positions(shape))
        if not all(positions):
            raise ConfigError([Problem("model.last_padding", _explain_size(config, shape), config.last_padding)])
        if problems := list(_check_layer(config, norm.layer, classes, positions)):
            raise ConfigError(problems)
        self.config, layer = config, norm.layer
        first, *_ = others = config.convolutions
        self.stem = ConvLayer(config, replace(first, inputs=channels), layer, height * width)
        self.layers = nn.ModuleList(
            ConvLayer(config, one, layer, count) for one, count in zip(others, positions, strict=True)
        )
        self.norm = layer.build(config.hidden) if norm.final_norm else nn.Identity()
        self.head = nn.Linear(config.hidden, classes, bias=False)
        self.head_norm = layer.build(classes) if config.norm_logits else nn.Identity()
        self.head_bias = build_bias(self.head_norm, classes)
        self.register_buffer("image_size", torch.empty(height, width, 0))  # by its shape: the weights do not say it
        initialize(self.projections(), init, norm, config.stack())

    def forward(self, images: Tensor) -> Tensor:
        x = images + self.config.noise * torch.randn_like(images) if self.training and self.config.noise else images
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head_bias(self.head_norm(self.head(self.norm(x.mean((2, 3))))))

    def parts(self) -> dict[str, tuple[str, ...]]:
        layers = {f"layers.{i}": (f"layers.{i}",) for i in range(len(self.layers))}
        ends = {"final_norm": ("norm",), "head": ("head", "head_norm", "head_bias"), "rest": ("image_size",)}
        return {"embedding": ("stem",), **layers, **ends}

    def embeddings(self) -> tuple[str, ...]:
        return ("stem",)

    def count_uses(self, part: str) -> int:
        layers = {f"layers.{i}": layer for i, layer in enumerate(self.layers)} | {"embedding": self.stem}
        if part not in layers:
            return 1
        layer = unwrap(layers[part])
        assert isinstance(layer, ConvLayer)
        return layer.positions

    def projections(self) -> Iterator[Projection]:
        yield Projection("embedding", None, self.stem.conv.weight)
        for i, block in enumerate(self.layers):
            layer = unwrap(block)
            assert isinstance(layer, ConvLayer)
            yield Projection("conv", i, layer.conv.weight)
        yield Projection("head", None, self.head.weight)


def _check_layer(config: ConvPool, layer: NormLayer, classes: int, positions: Sequence[int]) -> Iterator[Problem]:
    """Yield the problem of a norm layer with the logits, and with the layer that has the fewest positions."""
    normed = {}
    if config.norm_logits:
        normed[f"the logits of {classes} classes. Or leave them out: model.norm_logits=false"] = classes
    if config.norm_over == "positions" and not layer.per_feature:
        fewest = min(positions)
        remedy = "Take larger images, model.last_padding=1 or model.norm_over=channels"
        normed[f"the positions of a channel, {fewest} in the last layers. {remedy}"] = fewest
    for what, dim in normed.items():
        for problem in layer.validate(dim, causal=False):
            yield Problem(f"norm.layer.{problem.path}", f"{problem.message}: {what}", problem.given)


def _explain_size(config: ConvPool, shape: tuple[int, ...]) -> str:
    """Return why images of `shape` are too small, and which are not."""
    _, height, width = shape
    text = f"images of {height} x {width} pixels leave nothing to the later convolutions. Accepted: images from "
    settings = {"": config, ", with model.last_padding=1 from ": config.model_copy(update={"last_padding": 1})}
    sides = {words: one.find_smallest_side() for words, one in settings.items()}
    return text + "".join(f"{words}{side} x {side}" for words, side in sides.items() if not words or side < sides[""])
