"""Initialisations of the projections, for both model families and every placement."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ablate.config.base import Kind
from ablate.config.errors import Problem
from ablate.config.lazy import torch
from ablate.config.registry import Registry
from ablate.norms.placement import Placement, Stack

if TYPE_CHECKING:
    from torch import Tensor

OUTPUTS = ("o", "down")  # the projections that write to the residual stream
GATES = ("elementwise_gate", "headwise_gate")
"""Projections whose sigmoid multiplies the attention's output. They are drawn as `init` draws a matrix, whatever the
depth; no placement has a gain for them."""


@dataclass(frozen=True)
class Projection:
    """A weight matrix [out, in], or a part of a fused one, with its `role`: q, k, v, o, gate, up, down or one of
    `GATES` in the layer of 0-based index `layer`, or embedding and head, whose `layer` is None. A model without
    residual connections has roles of its own; a convolution's weight is [out, in, height, width]."""

    role: str
    layer: int | None
    weight: Tensor


class Initialization(Kind):
    """Initialisation of the projections: normal, with a standard deviation that may depend on the projection."""

    kind: str
    std: float | None = Field(None, gt=0)
    """Base standard deviation. None: 0.02."""
    embedding_std: float | None = Field(None, gt=0)
    """Standard deviation of the token embedding. None: that of the other matrices. The public code of Mix-LN draws it
    with sqrt(2/5) = 0.6325 for every placement."""

    formula: ClassVar[str] = ""
    """The standard deviations as a formula in one line."""
    source: ClassVar[str] = ""
    """The paper or model that the initialisation is from."""
    of_library: ClassVar[bool] = False
    """Whether it keeps the initial weights of a library's model."""
    by_residual: ClassVar[bool] = False
    """Whether it differs from `normal` in the projections that write to a residual stream."""
    by_width: ClassVar[bool] = False
    """Whether a standard deviation or a multiplier depends on the width."""
    by_depth: ClassVar[bool] = False
    """Whether a standard deviation depends on the number of layers or on a layer's place."""

    def base_std(self, stack: Stack) -> float:
        """Return the base standard deviation."""
        return 0.02 if self.std is None else self.std

    def std_of(self, projection: Projection, stack: Stack) -> float:
        """Return the standard deviation for one projection of a model."""
        raise NotImplementedError

    def draw_std(self, projection: Projection, stack: Stack) -> float:
        """Return the standard deviation with which a projection is drawn: `std_of`, and `embedding_std` for the
        embedding."""
        if projection.role == "embedding" and self.embedding_std is not None:
            return self.embedding_std
        return self.std_of(projection, stack)

    def embedding_multiplier(self, stack: Stack) -> float:
        """Return the constant by which the model multiplies the embedding of a token. A model that takes another than 1
        declares `embedding_multiplier` in `honours`."""
        return 1.0

    def validate(self, stack: Stack) -> list[Problem]:  # type: ignore[override]
        """Return the problems with this initialisation for a model."""
        own = stack.token_embedding or self.embedding_std is None
        return [] if own else [Problem("embedding_std", NO_EMBEDDING, self.embedding_std)]


NO_EMBEDDING = "the model has no token embedding of its own: its inputs are no tokens, or its head is the same matrix"

initializations: Registry[Initialization] = Registry("initialisation", Initialization, default="normal")


@initializations.register
class Normal(Initialization):
    """The same normal distribution for every projection."""

    kind: Literal["normal"] = "normal"
    formula = "std"
    source = "GPT, LLaMA"

    def std_of(self, projection: Projection, stack: Stack) -> float:
        return self.base_std(stack)


@initializations.register
class FanIn(Initialization):
    """By the number of inputs of a neuron, so that its summed input has the standard deviation `std` where the inputs
    have a mean square of 1: what a model without norms needs, whose signals otherwise vanish or explode. A token is one
    input: its embedding has `std`."""

    kind: Literal["fan_in"] = "fan_in"
    by_width = True
    std: float | None = Field(None, gt=0)
    """Standard deviation of the summed inputs. None: 1, as in LeCun et al.; sqrt(2) for ReLU, as in He et al."""
    formula = "std / sqrt(n), n the inputs of a neuron"
    source = "LeCun et al. 1998, Efficient BackProp; He et al. 2015, arXiv 1502.01852"

    def std_of(self, projection: Projection, stack: Stack) -> float:
        std = 1.0 if self.std is None else self.std
        of_tokens = projection.role == "embedding" and stack.token_embedding
        return std if of_tokens else std / math.prod(projection.weight.shape[1:]) ** 0.5


@initializations.register
class Scaled(Initialization):
    """Smaller for the projections that write to the residual stream, o and down."""

    kind: Literal["scaled"] = "scaled"
    by_residual = True
    by_depth = True
    formula = "std; std / sqrt(2L) for o and down"
    source = "GPT-2, OLMo"

    def std_of(self, projection: Projection, stack: Stack) -> float:
        std = self.base_std(stack)
        return std / (2 * stack.depth) ** 0.5 if projection.role in OUTPUTS else std


@initializations.register
class DepthScaled(Initialization):
    """Smaller with depth: every projection of layer l, counted from 1, is divided by sqrt(2l), as the paper of LNS
    compares it. Its source draws uniformly with alpha / sqrt(l)."""

    kind: Literal["depth_scaled"] = "depth_scaled"
    by_depth = True
    formula = "std; std / sqrt(2l) in layer l"
    source = "Sun et al. 2025, arXiv 2502.05795, section 6; after Zhang et al. 2019, arXiv 1908.11365"

    def std_of(self, projection: Projection, stack: Stack) -> float:
        std = self.base_std(stack)
        if projection.layer is None or projection.role in GATES:
            return std
        return std / (2 * (projection.layer + 1)) ** 0.5


@initializations.register
class SmallScaled(Initialization):
    """Small for the projections that write to the residual stream, o and down (W_0 and W_2), whatever `std` is: their
    standard deviation falls with the width and the depth. All others have `std`."""

    kind: Literal["small_scaled"] = "small_scaled"
    by_residual = True
    by_width = True
    by_depth = True
    formula = "std; sqrt(2 / (5d)) / sqrt(2L) for o and down"
    source = "Li et al. 2024, arXiv 2412.13795, appendix B; after Nguyen and Salazar 2019, arXiv 1910.05895"

    def std_of(self, projection: Projection, stack: Stack) -> float:
        small = (2 / (5 * stack.hidden)) ** 0.5
        return small / (2 * stack.depth) ** 0.5 if projection.role in OUTPUTS else self.base_std(stack)


@initializations.register
class ScaledEmbedding(SmallScaled):
    """As small_scaled, and the model multiplies the embedding by sqrt(d), in training and afterwards, so that the first
    norm does not amplify its gradient. A larger start of the embedding is something else: Adam's updates do not grow
    with a weight, so that they would move the multiplied embedding sqrt(d) times as far. The paper draws all matrices
    from N(0, 2 / (5d)): for that, set `std` to sqrt(2 / (5d))."""

    kind: Literal["scaled_embedding"] = "scaled_embedding"  # type: ignore[assignment]
    formula = "as small_scaled; sqrt(d) * embedding in the forward pass"
    source = "Takase et al. 2023, arXiv 2312.16903"

    def embedding_multiplier(self, stack: Stack) -> float:
        return float(stack.hidden**0.5)

    def validate(self, stack: Stack) -> list[Problem]:  # type: ignore[override]
        return super().validate(stack) if stack.token_embedding else [Problem("kind", NO_EMBEDDING, self.kind)]


@initializations.register
class LibraryInitialization(Initialization):
    """The initial weights that a model of a library has of its own, the same function for every placement. Their
    default, and for them alone (`model.kind: hf` and `timm`)."""

    kind: Literal["library"] = "library"
    listed = False
    of_library = True
    formula = "as the library draws them"

    def validate(self, stack: Stack) -> list[Problem]:  # type: ignore[override]
        text = "the library's own initialisation has no such setting; it is the standard deviation of init=normal"
        values = {"std": self.std, "embedding_std": self.embedding_std}
        return [Problem(name, text, value) for name, value in values.items() if value is not None]


def initialize(projections: Iterable[Projection], init: Initialization, placement: Placement, stack: Stack) -> None:
    """Initialise every projection in order from torch's global generator; a placement's own gains take precedence over
    `init`. With the initialisation of a library the others stay as they are."""
    for projection in projections:
        placed = None if projection.layer is None else placement.at(projection.layer, stack.depth)
        gains = placed.gains(stack.depth) if placed else {}
        if projection.role in gains:
            torch.nn.init.xavier_normal_(projection.weight, gain=gains[projection.role])
        elif not init.of_library:
            torch.nn.init.normal_(projection.weight, std=init.draw_std(projection, stack))
