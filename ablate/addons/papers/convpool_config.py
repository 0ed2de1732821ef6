"""ConvPool-CNN-C's configuration. Its model: `convpool`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ablate.config.bounds import MOST_WIDTH
from ablate.config.errors import Problem
from ablate.models import ModelConfig, models
from ablate.norms import Initialization, Placement, Stack

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Convolution:
    """A convolution of the architecture."""

    inputs: int
    outputs: int
    kernel: int
    """Side of the kernel, in pixels."""
    padding: int
    pooled: bool = False
    """Whether max-pooling and dropout follow."""


@models.register
class ConvPool(ModelConfig):
    """ConvPool-CNN-C (Springenberg et al. 2014, arXiv 1412.6806) as Salimans and Kingma 2016 (arXiv 1602.07868) modify
    it for CIFAR-10, and Zhang and Sennrich 2019 (arXiv 1910.07467) after them, with norms on the summed inputs of every
    layer. It has no residual connections, so that it takes no placement but summed_inputs; norm.layer=none is the plain
    network.

    Three 3 x 3 convolutions of `width` channels, max-pooling, dropout, three of twice as many channels, max-pooling,
    dropout, one more and two of 1 x 1, the mean over all positions, and a linear layer. The default size is for small
    images; the papers' is model=convpool-cnn-c. The defaults of noise, slope, pooling and dropout are those of the
    public code of Salimans and Kingma (github.com/openai/weightnorm), which Zhang and Sennrich name for theirs.
    """

    kind: Literal["convpool"] = "convpool"
    width: int = Field(16, gt=0, le=MOST_WIDTH)
    """Channels of the first three convolutions; the other six have twice as many. 96 in the papers."""
    norm_over: Literal["positions", "channels"] = "positions"
    """The axis of the statistics of a norm layer. positions: those of each channel of an image, with a gain for each
    channel, as in the public code of Zhang and Sennrich (RMSNormLayer: axes 2 and 3). channels: those of each position.
    BatchNorm is over batch and positions in both."""
    norm_logits: bool = True
    """Whether the summed inputs of the output layer are normed, too, as in that code: over the classes, of BatchNorm
    over the batch."""
    noise: float = Field(0.15, ge=0)
    """Standard deviation of the Gaussian noise that is added to the pixels in training."""
    slope: float = Field(0.1, ge=0, lt=1)
    """Slope of the activation below zero. 0: ReLU, as in Springenberg et al."""
    pool: Literal[2, 3] = 2
    """Side of the windows of max-pooling, of stride 2. 3 in Springenberg et al."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Dropout rate after each max-pooling."""
    last_padding: Literal[0, 1] = 0
    """Padding of the last 3 x 3 convolution. 0 in the papers; 1 is needed for images below 12 x 12, with `pool: 3`
    below 15 x 15."""

    heads: ClassVar[int] = 0
    task: ClassVar[str] = "image_classification"
    has_residuals: ClassVar[bool] = False
    keeps_shape: ClassVar[bool] = False
    honours: ClassVar[frozenset[str]] = frozenset({"no_final_norm"})
    defaults: ClassVar[dict[str, Any]] = {
        "data.kind": "glyphs",
        "norm.kind": "summed_inputs",
        "norm.layer.kind": "rmsnorm",
        "init.kind": "fan_in",
    }
    example: ClassVar[Mapping[str, Any]] = {"width": 4, "last_padding": 1, "noise": 0.0, "dropout": 0.0}

    @property
    def hidden(self) -> int:
        """Channels of the last layer."""
        return 2 * self.width

    @property
    def layers(self) -> int:
        """Number of convolutions after the first, which embeds the pixels."""
        return len(self.convolutions)

    @property
    def convolutions(self) -> list[Convolution]:
        """The convolutions after the first."""
        w, two = self.width, 2 * self.width
        return [
            Convolution(w, w, 3, 1),
            Convolution(w, w, 3, 1, pooled=True),
            Convolution(w, two, 3, 1),
            Convolution(two, two, 3, 1),
            Convolution(two, two, 3, 1, pooled=True),
            Convolution(two, two, 3, self.last_padding),
            Convolution(two, two, 1, 0),
            Convolution(two, two, 1, 0),
        ]

    def build(self, norm: Placement, init: Initialization, classes: int, shape: tuple[int, ...]) -> Any:
        return resolve_name("ablate.addons.papers.convpool:ConvPoolModel")(self, norm, init, classes, shape)

    def stack(self) -> Stack:
        normed = (self.width, 2 * self.width) if self.norm_over == "channels" else ()
        return Stack(self.layers, self.hidden, 0, 0, 0, 0, causal=False, token_embedding=False, summed_inputs=normed)

    def layer_parameters(self) -> int:
        return sum(_count_weights(one) for one in self.convolutions)

    def iterate_positions(self, shape: tuple[int, ...]) -> Iterator[int]:
        """Yield the number of positions at which each convolution after the first is computed, on images of `shape`; 0
        where nothing is left of them."""
        _, *sides = shape
        for one in self.convolutions:
            sides = [max(0, side + 2 * one.padding - one.kernel + 1) for side in sides]
            yield sides[0] * sides[1]
            if one.pooled:
                sides = [max(0, (side - self.pool) // 2 + 1) for side in sides]

    def find_smallest_side(self) -> int:
        """Return the smallest side of square images that leave a position to each convolution."""
        return next(side for side in itertools.count(1) if all(self.iterate_positions((1, side, side))))

    def sequence_length(self, shape: tuple[int, ...]) -> int:
        """Return how often an image is multiplied with a weight of the layers, on average over the weights."""
        uses = zip(self.convolutions, self.iterate_positions(shape), strict=True)
        return max(1, round(sum(n * _count_weights(one) for one, n in uses) / self.layer_parameters()))

    def attention_flops(self, shape: tuple[int, ...]) -> int:
        return 0

    def count_own_norms(self) -> tuple[int, int]:
        return 1, 1 + self.norm_logits

    def count_classes(self, state: Mapping[str, Tensor]) -> int:
        return len(state["head.weight"])

    def input_shape(self, state: Mapping[str, Tensor], length: int) -> tuple[int, ...]:
        height, width, _ = state["image_size"].shape
        return state["stem.conv.weight"].shape[1], height, width

    def narrowed(self, share: float) -> dict[str, Any]:
        return {"width": max(4, 4 * round(self.width * share**0.5 / 4))}

    def validate_choices(self, norm: Placement, init: Initialization) -> list[Problem]:
        problems, layer = super().validate_choices(norm, init), norm.layer
        if self.norm_over == "positions" and not (layer.per_feature or layer.has_statistic or layer.of_library):
            text = (
                f"has its gains along the features that it norms, and model {self.title} norms the positions of each "
                "channel. Set model.norm_over=channels, or take another norm layer"
            )
            problems.append(Problem("norm.layer", text, layer.kind))
        return problems


def _count_weights(convolution: Convolution) -> int:
    return convolution.inputs * convolution.outputs * convolution.kernel**2


models.preset("convpool-digits", "convpool", width=16, last_padding=1)
models.preset("convpool-cnn-c", "convpool", width=96)  # for images of 32 x 32
