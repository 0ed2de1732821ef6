"""Placements: where norm layers and factors sit around the residual connections of a layer.

A block of either model family is two lines, whatever the placement,

    x = self.attn_residual(x, self.attn)
    x = self.mlp_residual(x, self.mlp)

and a placement is the factory of those two modules: `wire(site)`. To add one, write one class here (or in a file of
your own): a `kind`, its fields, and `residual`, which wires one sublayer. Below, `N` is the norm layer
(`norm.layer`), `f` a sublayer (attention, then MLP), `L` the number of layers and `l` a layer's index counted from 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_serializer, model_validator
from torch import Tensor, nn

from ablate.norms.layers import NormLayer, RMSNorm, norm_layers
from ablate.registry import Kind, Registry

Sublayer = Callable[..., Tensor]


@dataclass(frozen=True)
class Site:
    """Where a layer stands: its 0-based `index` among `depth` layers, and `norm()`, which builds one norm layer."""

    index: int
    depth: int
    norm: Callable[[], nn.Module]


class Placement(Kind):
    """A placement. Fields given here are common to all placements and stay when `norm.kind` changes."""

    kind: str
    layer: Annotated[NormLayer, norm_layers] = RMSNorm()
    """The norm layer. Where it is not given, the model's own: RMSNorm for LLaMA, LayerNorm for ViT."""
    final_norm: bool = True
    """Whether one norm closes the stack before the head. On for every placement, as in the papers' experiments;
    Post-LN and DeepNorm then end with two norms in a row (DeepNet's reference code has none)."""

    rule: ClassVar[str]
    """The sublayer rule in one line, as `ablate list placements` prints it."""
    source: ClassVar[str]
    """The paper that the rule is from."""
    embedding_norm: ClassVar[bool] = False
    """Whether a norm follows the embedding."""
    inner_norm: ClassVar[bool] = False
    """Whether a norm precedes the output projections of attention and MLP."""

    def residual(self, site: Site) -> nn.Module:
        """The wiring of one sublayer: a module called with (x, f, *arguments of f)."""
        raise NotImplementedError

    def wire(self, site: Site) -> tuple[nn.Module, nn.Module]:
        """The wiring of a layer's attention and MLP. A placement that ties the two together overrides this; what the
        first returns is what the second is given, so it may be more than one tensor."""
        return self.residual(site), self.residual(site)

    def at(self, index: int, depth: int) -> Placement:
        """The placement of one layer: this one, unless it depends on the depth."""
        return self

    def gains(self, depth: int) -> dict[str, float]:
        """Xavier gain by projection (q, k, v, o, gate, up, down) where the placement brings its own initialisation."""
        return {}

    def problems(self, depth: int) -> list[tuple[tuple[str, ...], str, Any]]:
        """What is wrong with these fields for a model of `depth` layers: (path, message, given)."""
        return []


_SHARED = ("layer", "final_norm")
placements: Registry[Placement] = Registry("placement", Placement, default="pre")


class PreResidual(nn.Module):
    """`x + f(scale * N(x))`; `scale` is a Python float, so that it survives construction on the meta device."""

    def __init__(self, norm: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        self.norm, self.scale = norm, scale

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        h = self.norm(x)
        return x + f(h if self.scale == 1.0 else h * self.scale, *args)


class PostResidual(nn.Module):
    """`N(alpha * x + f(x))`; `alpha` is a Python float, so that it survives construction on the meta device."""

    def __init__(self, norm: nn.Module, alpha: float = 1.0) -> None:
        super().__init__()
        self.norm, self.alpha = norm, alpha

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        y = f(x, *args)
        return self.norm(x + y if self.alpha == 1.0 else self.alpha * x + y)


@placements.register
class Pre(Placement):
    """Pre-LN: the norm on each sublayer's input; the residual stream itself is never normed."""

    kind: Literal["pre"] = "pre"
    rule = "x + f(N(x))"
    source = "Xiong et al. 2020, arXiv 2002.04745"

    def residual(self, site: Site) -> nn.Module:
        return PreResidual(site.norm())


@placements.register
class Post(Placement):
    """Post-LN: the norm after each residual addition."""

    kind: Literal["post"] = "post"
    rule = "N(x + f(x))"
    source = "Vaswani et al. 2017, arXiv 1706.03762"

    def residual(self, site: Site) -> nn.Module:
        return PostResidual(site.norm())


@placements.register
class DeepNorm(Placement):
    """DeepNorm: Post-LN with the residual scaled up by `alpha = (2L)^(1/4)`, and with its initialisation: Xavier
    normal, of gain `beta = (8L)^(-1/4)` for the value, output and MLP projections and 1 for query and key. The values
    are those of a decoder-only model and the same for an encoder-only one. They take the place of `init` for these
    projections."""

    kind: Literal["deepnorm"] = "deepnorm"
    rule = "N((2L)^(1/4) x + f(x))"
    source = "Wang et al. 2022, arXiv 2203.00555"

    def residual(self, site: Site) -> nn.Module:
        return PostResidual(site.norm(), alpha=(2 * site.depth) ** 0.25)

    def gains(self, depth: int) -> dict[str, float]:
        beta = (8 * depth) ** -0.25
        return {"q": 1.0, "k": 1.0, **dict.fromkeys(("v", "o", "gate", "up", "down"), beta)}


@placements.register
class LayerNormScaling(Placement):
    """LayerNorm Scaling (LNS): Pre-LN with the output of layer l's norms scaled by `1 / sqrt(l)`, l from 1, in both
    sublayers and not on the final norm. Its authors advise against combining it with `init: scaled`."""

    kind: Literal["lns"] = "lns"
    rule = "x + f(N(x) / sqrt(l))"
    source = "Sun et al. 2025, arXiv 2502.05795"

    def residual(self, site: Site) -> nn.Module:
        return PreResidual(site.norm(), scale=(site.index + 1) ** -0.5)


@placements.register
class Mix(Placement):
    """Mix-LN: the first `floor(alpha * L)` layers take one placement (Post-LN), the others another (Pre-LN)."""

    kind: Literal["mix"] = "mix"
    alpha: float | None = Field(None, ge=0, le=1)
    """The share of the layers that take `first`: 0 is `second` everywhere, 1 is `first` everywhere. 0.25 if not
    given."""
    first_layers: int | None = Field(None, ge=0)
    """The number of the layers that take `first`, instead of `alpha` (floor(0.33 * 24) = 7, while a third is 8)."""
    first: Annotated[Placement, placements] = Post()
    """The placement of the shallow layers. `layer` and `final_norm` belong to `norm` itself and hold for both."""
    second: Annotated[Placement, placements] = Pre()
    """The placement of the deep layers."""
    rule = "first floor(alpha L) layers N(x + f(x)), then x + f(N(x))"
    source = "Li et al. 2024, arXiv 2412.13795"

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
        if shared := sorted((self.first.model_fields_set | self.second.model_fields_set) & set(_SHARED)):
            raise ValueError(f"set {', '.join(shared)} on norm itself, not on first or second")
        return self

    @field_serializer("first", "second")
    def _own_fields(self, placement: Placement) -> dict[str, Any]:
        return placement.model_dump(mode="json", exclude=set(_SHARED))

    def switch(self, depth: int) -> int:
        """The number of layers, of `depth`, that take `first`."""
        if self.first_layers is not None:
            return self.first_layers
        assert self.alpha is not None
        return math.floor(self.alpha * depth + 1e-9)  # 0.29 * 100 is 28.999999999999996

    def at(self, index: int, depth: int) -> Placement:
        return (self.first if index < self.switch(depth) else self.second).at(index, depth)

    def wire(self, site: Site) -> tuple[nn.Module, nn.Module]:
        return self.at(site.index, site.depth).wire(site)

    def problems(self, depth: int) -> list[tuple[tuple[str, ...], str, Any]]:
        found: list[tuple[tuple[str, ...], str, Any]] = []
        if self.first_layers is not None and self.first_layers > depth:
            found.append((("first_layers",), f"the model has {depth} layers", self.first_layers))
        for name, part in (("first", self.first), ("second", self.second)):
            found += [((name, *path), text, given) for path, text, given in part.problems(depth)]
        return found
