"""Initialisations of the projections, for both model families and every placement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ablate.config.base import Kind
from ablate.config.errors import Problem
from ablate.config.lazy import LazyModule
from ablate.config.registry import Registry
from ablate.norms.placement import Placement, Stack

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = LazyModule("torch")

OUTPUTS = ("o", "down")  # the projections that write to the residual stream


@dataclass(frozen=True)
class Projection:
    """A weight matrix [out, in], or a part of a fused one, with its `role`: q, k, v, o, gate, up, down in the layer of
    0-based index `layer`, or embedding and head, whose `layer` is None."""

    role: str
    layer: int | None
    weight: Tensor


class Initialization(Kind):
    """Initialisation of the projections: normal, with a standard deviation that may depend on the projection."""

    kind: str
    std: float | None = Field(None, gt=0)
    """Base standard deviation. None: 0.02, and for small_scaled sqrt(2 / (5d))."""

    formula: ClassVar[str] = ""
    """The standard deviations as a formula in one line."""
    source: ClassVar[str] = ""
    """The paper or model that the initialisation is from."""
    of_library: ClassVar[bool] = False
    """Whether it is the one that a library's model has of its own."""

    def base_std(self, stack: Stack) -> float:
        """Return the base standard deviation."""
        return 0.02 if self.std is None else self.std

    def std_of(self, projection: Projection, stack: Stack) -> float:
        """Return the standard deviation for one projection of a model."""
        raise NotImplementedError

    def validate(self, stack: Stack) -> list[Problem]:  # type: ignore[override]
        """Return the problems with this initialisation for a model."""
        return []


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
class Scaled(Initialization):
    """Smaller for the projections that write to the residual stream, o and down."""

    kind: Literal["scaled"] = "scaled"
    formula = "std; std / sqrt(2L) for o and down"
    source = "GPT-2, OLMo"

    def std_of(self, projection: Projection, stack: Stack) -> float:
        std = self.base_std(stack)
        return std / (2 * stack.depth) ** 0.5 if projection.role in OUTPUTS else std


@initializations.register
class SmallScaled(Scaled):
    """As scaled, with a base standard deviation that falls with the width."""

    kind: Literal["small_scaled"] = "small_scaled"  # type: ignore[assignment]
    formula = "s = sqrt(2 / (5d)); s / sqrt(2L) for o and down"
    source = "Nguyen and Salazar 2019, arXiv 1910.05895; Li et al. 2024, arXiv 2412.13795, appendix B"

    def base_std(self, stack: Stack) -> float:
        return (2 / (5 * stack.hidden)) ** 0.5 if self.std is None else self.std


@initializations.register
class ScaledEmbedding(Scaled):
    """As scaled, with the embedding's standard deviation that of small_scaled times sqrt(d), so that the first norm
    does not amplify the embedding's gradient. The paper initialises the other matrices as small_scaled does: for that,
    set `std` to sqrt(2 / (5d))."""

    kind: Literal["scaled_embedding"] = "scaled_embedding"  # type: ignore[assignment]
    formula = "as scaled; sqrt(2/5) for the embedding"
    source = "after Takase et al. 2023, arXiv 2312.16903"

    def std_of(self, projection: Projection, stack: Stack) -> float:
        return (2 / 5) ** 0.5 if projection.role == "embedding" else super().std_of(projection, stack)

    def validate(self, stack: Stack) -> list[Problem]:  # type: ignore[override]
        text = "the model has no token embedding of its own to scale"
        return [] if stack.token_embedding else [Problem("kind", text, self.kind)]


@initializations.register
class LibraryInitialization(Initialization):
    """The initial weights that a model of a library has of its own, the same function for every placement. Their
    default, and for them alone (`model.kind: hf` and `timm`)."""

    kind: Literal["library"] = "library"
    listed = False
    of_library = True
    formula = "as the library draws them"

    def validate(self, stack: Stack) -> list[Problem]:  # type: ignore[override]
        text = "the library's own initialisation has no such setting; take init=normal, of which it is the deviation"
        return [] if self.std is None else [Problem("std", text, self.std)]


def initialize(projections: Iterable[Projection], init: Initialization, placement: Placement, stack: Stack) -> None:
    """Initialise every projection in order from torch's global generator; a placement's own gains take precedence over
    `init`. With the initialisation of a library the others stay as they are."""
    for projection in projections:
        placed = None if projection.layer is None else placement.at(projection.layer, stack.depth)
        gains = placed.gains(stack.depth) if placed else {}
        if projection.role in gains:
            torch.nn.init.xavier_normal_(projection.weight, gain=gains[projection.role])
        elif not init.of_library:
            torch.nn.init.normal_(projection.weight, std=init.std_of(projection, stack))
