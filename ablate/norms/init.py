"""Initialisations of the projections, for both model families and every placement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from ablate.norms.placements import Placement
from ablate.registry import Kind, Registry

OUTPUTS = ("o", "down")  # the projections that write to the residual stream


@dataclass(frozen=True)
class Projection:
    """A weight matrix [out, in], or the part of a fused one, by its `role`: q, k, v, o, gate, up, down in the layer of
    0-based index `layer`, or embedding and head, whose `layer` is None."""

    role: str
    layer: int | None
    weight: Tensor


class Initialization(Kind):
    """How the projections start."""

    kind: str
    std: float = Field(0.02, gt=0)
    """Standard deviation of the normal distribution."""

    def std_of(self, projection: Projection, depth: int) -> float:
        """The standard deviation for one projection of a model of `depth` layers."""
        raise NotImplementedError


initializations: Registry[Initialization] = Registry("initialisation", Initialization, default="normal")


@initializations.register
class Normal(Initialization):
    """N(0, std) everywhere."""

    kind: Literal["normal"] = "normal"

    def std_of(self, projection: Projection, depth: int) -> float:
        return self.std


@initializations.register
class Scaled(Initialization):
    """N(0, std), and std / sqrt(2L) for the projections that write to the residual stream (GPT-2, OLMo)."""

    kind: Literal["scaled"] = "scaled"

    def std_of(self, projection: Projection, depth: int) -> float:
        return self.std / (2 * depth) ** 0.5 if projection.role in OUTPUTS else self.std


def initialize(projections: Iterable[Projection], init: Initialization, placement: Placement, depth: int) -> None:
    """Draws every projection anew from torch's global generator, in order; a placement's own gains go before `init`."""
    for projection in projections:
        gains = {} if projection.layer is None else placement.at(projection.layer, depth).gains(depth)
        if projection.role in gains:
            nn.init.xavier_normal_(projection.weight, gain=gains[projection.role])
        else:
            nn.init.normal_(projection.weight, std=init.std_of(projection, depth))
