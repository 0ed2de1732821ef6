"""The modules of nGPT. `u(x)` is x divided by its length, and 0 for 0."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.norms.layer_modules import widen
from ablate.norms.placement import Site
from ablate.norms.residuals import Sublayer, add_branch


def unit(x: Tensor) -> Tensor:
    """Return u(x) over the last dimension."""
    return F.normalize(widen(x), dim=-1).to(x.dtype)


class Scale(nn.Module):
    """`s * x` with learned factors s by feature, [size], from `start`. What is learned is s * stored / start: an update
    of Adam moves that by the learning rate, and s by start / stored times as much."""

    mixing: ClassVar[tuple[str, ...]] = ("weight",)

    def __init__(self, size: int, start: float, stored: float) -> None:
        super().__init__()
        self.weight, self.ratio = nn.Parameter(torch.full((size,), stored)), start / stored

    def values(self) -> Tensor:
        """Return s."""
        return self.weight * self.ratio

    def forward(self, x: Tensor) -> Tensor:
        return x * self.values().to(x.dtype)


class SphereResidual(nn.Module):
    """`u(h + |a| (u(f(x)) - h))` with h = u(x) and learned a [d] from `start`."""

    def __init__(self, site: Site, start: float) -> None:
        super().__init__()
        self.drop, self.rate = site.drop(), Scale(site.dim, start, site.dim**-0.5)

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        h = unit(x)
        step = self.rate.values().abs() * (unit(f(x, *args)) - h)
        return unit(add_branch(h, self.drop, step.to(x.dtype)))


class UnitQueries(nn.Module):
    """Queries and keys [batch, heads, tokens, head_dim] -> those whose product, over sqrt(head_dim), is `sqrt(head_dim)
    (s u(q)) (s u(k))`, with learned s by feature of each head. s^2 is on the queries, so that it is the same for fewer
    heads of keys. A constant factor of the queries has no effect."""

    def __init__(self, heads: int, head_dim: int, width: int) -> None:
        super().__init__()
        self.scale, self.shape = Scale(heads * head_dim, 1.0, width**-0.5), (heads, 1, head_dim)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        factors = self.scale.values().view(self.shape).square() * q.shape[-1]
        return unit(q) * factors.to(q.dtype), unit(k)


@torch.no_grad()
def normalise_weights(model: nn.Module) -> None:
    """Set the vectors of the hidden state's width in all matrices that are trained to length 1: rows, or the columns of
    matrices that a module names in `writes`, since they write to the residual stream. Shards are set by the lengths of
    the whole vectors."""
    columns = {getattr(module, name).weight for module in model.modules() for name in getattr(module, "writes", ())}
    for weight in model.parameters():
        if weight.ndim == 2 and weight.requires_grad:
            weight.copy_(F.normalize(widen(weight), dim=0 if weight in columns else 1))
