"""The modules of modifiers of placements: gates behind a residual sum, and factors of branches that grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.norms.residuals import Sublayer


class Gate(nn.Module):
    """`s - silu(g) sg(s)` with a learned g, [1], from 0: scaled in the forward pass, the identity in the backward pass
    for s."""

    on_stream: ClassVar[tuple[str, ...]] = ("g",)

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.zeros(1))

    def forward(self, s: Tensor) -> Tensor:
        return (s - F.silu(self.g) * s.detach()).to(s.dtype)


class GatedSum(nn.Module):
    """`G(x + ...)` around the wiring `inner` of one sublayer. The gate is a part of the layer's attention, `owns`, and
    used by its MLP."""

    def __init__(self, inner: nn.Module, gate: Gate, owns: bool) -> None:
        super().__init__()
        self.inner, self.shared = inner, (gate,)
        if owns:
            self.gate = gate

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        return self.shared[0](self.inner(x, f, *args))


class GatedInput(GatedSum):
    """`N(alpha G(x) + f(x))` around the wiring `N(alpha x + f(x))`."""

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        y: Tensor = self.inner(self.shared[0](x), lambda _, *more: f(x, *more), *args)
        return y


BY_END = {"sum": GatedSum, "norm": GatedInput}
"""What a sublayer ends with -> its wiring with a gate."""


class Growing(nn.Module):
    """`factor * drop(y)` with a factor, [1], that grows after each update to what `find` gives for their number, and
    is part of a checkpoint."""

    factor: Tensor

    def __init__(self, drop: nn.Module, find: Callable[[int], float]) -> None:
        super().__init__()
        self.drop, self.find = drop, find
        self.register_buffer("factor", torch.full((1,), find(0)))

    def forward(self, y: Tensor) -> Tensor:
        dropped: Tensor = self.drop(y)
        return dropped * self.factor.to(dropped.dtype)
