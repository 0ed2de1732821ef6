"""Placements that change with the depth: Mix-LN, and any placement on any range of layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_serializer, field_validator, model_validator

from ablate.config.base import Config
from ablate.config.bounds import MOST_LAYERS
from ablate.config.errors import Problem
from ablate.norms.placement import Placement, Site, Stack, placements
from ablate.norms.placements import Post, Pre

if TYPE_CHECKING:
    from torch import Tensor, nn

_SHARED = ("layer", "final_norm", "qk", "qk_over")
_DEEP = 1 << 20  # layers, instead of none: every share of them above 0 has the first


def check_only_own(**parts: Placement) -> None:
    """Raise ValueError if a part sets a field that holds for all layers."""
    for name, part in parts.items():
        if shared := sorted(part.model_fields_set & set(_SHARED)):
            raise ValueError(f"set {', '.join(shared)} on norm itself, not on {name}")


def dump_own_fields(placement: Placement) -> dict[str, Any]:
    return placement.model_dump(mode="json", exclude=set(_SHARED))


def floor_of(share: float, depth: int) -> int:
    """Return `floor(share * depth)` in exact arithmetic: in floating point 0.29 * 100 is 28.999999999999996."""
    return math.floor(share * depth + 1e-9)


class Depthwise(Placement):
    """A placement that combines others, each for a range of layers."""

    def parts(self, depth: int) -> list[tuple[str, int, Placement]]:
        """Return (field, first layer after its range, placement) for each part, in the order of the layers."""
        raise NotImplementedError

    def at(self, index: int, depth: int) -> Placement:
        return next(part for _, end, part in self.parts(depth or _DEEP) if index < end).at(index, depth)

    def list_parts(self) -> list[Placement]:
        return [self, *(one for _, _, part in self.parts(1) for one in part.list_parts())]

    def after_update(self, model: nn.Module, updates: int) -> None:
        for _, _, part in self.parts(1):
            part.after_update(model, updates)

    def wire(self, site: Site) -> tuple[nn.Module, nn.Module]:
        return self.at(site.index, site.depth).wire(site)

    def wire_attn(self, site: Site) -> nn.Module:
        return self.at(site.index, site.depth).wire_attn(site)

    def prepare(self, model: nn.Module, first_inputs: Callable[[], Tensor]) -> None:
        for _, _, part in self.parts(1):
            part.prepare(model, first_inputs)

    def validate(self, stack: Stack) -> list[Problem]:  # type: ignore[override]
        parts = self.parts(stack.depth)
        problems = [problem.within(name) for name, _, part in parts for problem in part.validate(stack)]
        carriers = dict.fromkeys(self.at(index, stack.depth).carrier for index in range(stack.depth))
        if len(carriers) > 1:
            told = ", then ".join(carriers)
            problems.append(Problem("", f"its layers hand on different things: {told}. Accepted: the same in all"))
        return problems


@placements.register
class Mix(Depthwise):
    """Mix-LN: the first `floor(alpha * L)` layers take one placement (Post-LN), the others another (Pre-LN)."""

    kind: Literal["mix"] = "mix"
    alpha: float | None = Field(None, ge=0, le=1)
    """The share of the layers with the placement `first`: 0 means `second` everywhere, 1 means `first` everywhere.
    Default 0.25."""
    first_layers: int | None = Field(None, ge=0, le=MOST_LAYERS)
    """The number of layers with the placement `first`, instead of `alpha`: floor(0.33 * 24) = 7, but a third of 24 is
    8."""
    first: Annotated[Placement, placements] = Post()
    """The placement of the shallow layers. Set `layer` and `final_norm` on `norm` itself; they hold for both."""
    second: Annotated[Placement, placements] = Pre()
    """The placement of the deep layers."""
    rule = "first floor(alpha L) layers N(x + f(x)), then x + f(N(x))"
    source = "Li et al. 2024, arXiv 2412.13795"
    diagram = "layers 1 ... floor(alpha L)      x ─┬─ f ─ + ─ N ─►\n" + (
        "                                    └──────┘\n"
        "layers floor(alpha L) + 1 ... L  x ─┬─ N ─ f ─ + ─►\n"
        "                                    └──────────┘"
    )
    initialisation = "set by each layer's placement"

    @model_validator(mode="before")
    @classmethod
    def _default_alpha(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("alpha") is None and data.get("first_layers") is None:
            return {**data, "alpha": 0.25}
        return data

    @model_validator(mode="after")
    def _one_way(self) -> Mix:
        if self.alpha is not None and self.first_layers is not None:
            raise ValueError("give either alpha or first_layers, not both")
        check_only_own(first=self.first, second=self.second)
        return self

    @field_serializer("first", "second")
    def _fields(self, placement: Placement) -> dict[str, Any]:
        return dump_own_fields(placement)

    def switch(self, depth: int) -> int:
        """Return how many of `depth` layers have the placement `first`."""
        if self.first_layers is not None:
            return self.first_layers
        assert self.alpha is not None
        return floor_of(self.alpha, depth)

    def caution(self, depth: int, updates: int) -> str:
        if self.alpha and depth and not self.switch(depth):
            return f"mix: alpha={self.alpha:g} of {depth} layers rounds down to 0, so that all are {self.second.kind}."
        return ""

    def parts(self, depth: int) -> list[tuple[str, int, Placement]]:
        return [("first", self.switch(depth), self.first), ("second", depth, self.second)]

    def validate(self, stack: Stack) -> list[Problem]:  # type: ignore[override]
        problems = super().validate(stack)
        if self.first_layers is not None and self.first_layers > stack.depth:
            problems.append(Problem("first_layers", f"the model has {stack.depth} layers", self.first_layers))
        return problems


class LayerRange(Config):
    """A range of consecutive layers with one placement. It begins where the previous range ends."""

    placement: Annotated[Placement, placements]
    """The placement of these layers. Set `layer` and `final_norm` on `norm` itself; they hold for all ranges."""
    until: float = Field(1.0, ge=0, le=1)
    """Where the range ends, as a share of the layers: after layer `floor(until * L)`."""

    @model_validator(mode="after")
    def _own(self) -> LayerRange:
        check_only_own(placement=self.placement)
        return self

    @field_serializer("placement")
    def _fields(self, placement: Placement) -> dict[str, Any]:
        return dump_own_fields(placement)


@placements.register
class ByDepth(Depthwise):
    """Any placement on any range of layers; Mix-LN is the special case of two ranges."""

    kind: Literal["by_depth"] = "by_depth"
    ranges: dict[str, LayerRange] = {
        "shallow": LayerRange(placement=Post(), until=0.25),
        "deep": LayerRange(placement=Pre()),
    }
    """Name -> range. `until` determines the order of the ranges, not their order here; the last range ends at 1. If
    ranges are given, they replace the default ones."""
    rule = "each range of layers has its own placement"
    source = "a generalisation of Li et al. 2024, arXiv 2412.13795"
    diagram = "layers 1 ... floor(until_1 L)                   the first range's placement\n" + (
        "layers floor(until_1 L) + 1 ... floor(until_2 L)  the second's, and so on"
    )
    initialisation = "set by each layer's placement"

    @field_validator("ranges")
    @classmethod
    def _cover(cls, ranges: dict[str, LayerRange]) -> dict[str, LayerRange]:
        ends = sorted(part.until for part in ranges.values())
        if not ends or ends[-1] != 1:
            raise ValueError("the last range must end at 1")
        if len(set(ends)) < len(ends):
            raise ValueError("two ranges end at the same place")
        return ranges

    def parts(self, depth: int) -> list[tuple[str, int, Placement]]:
        ordered = sorted(self.ranges.items(), key=lambda item: item[1].until)
        return [(f"ranges.{name}.placement", floor_of(r.until, depth), r.placement) for name, r in ordered]
