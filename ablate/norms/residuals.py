"""The wiring of residual connections: modules called with (x, f, *arguments of f), where f is a sublayer.

Each builds its norms from the `site` and puts stochastic depth, `site.drop()`, on the whole branch that is added to the
stream: after a norm of the sublayer's output, which would undo its scaling. The formulas omit it. Factors that are not
learned are Python floats, and None instead of 1: a buffer would be rounded with the weights when these are converted to
bfloat16. Factors that may differ by layer are named in `factors` (see `lift_factors`). What is learned in a norm on a
branch changes the stream by as much as the branch counts; a norm that the stream itself passes through is named in
`on_stream`, since what is learned there adds up over all layers. Parameters of two dimensions that are no matrices of
the model are named in `mixing`, which never decay, in `readouts`, which map the width to a few numbers, or in
`expansions`, which map a few numbers to the width. `flops` are those of one token in the forward pass that are not the
product with a `weight` of a module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ablate.norms.placement import Site

Sublayer = Callable[..., Tensor]
Factor = float | Tensor | None
"""A Python float, or the tensor that `lift_factors` replaced it with; None: 1."""


def lift_factors(layer: nn.Module) -> None:
    """Convert the factors that the wiring of a layer names in `factors` to tensors, with the same results bit for bit.

    In a compiled program a Python float is a constant, so each layer with a different value would be compiled
    separately; a tensor is an input. Torch converts a float to a float64 tensor on the CPU, whatever the device; this
    tensor is the same, and as the second argument of a product it is not rounded to the type of the first.
    """
    for module in layer.modules():
        for name in getattr(module, "factors", ()):
            if isinstance(value := getattr(module, name), float):
                setattr(module, name, torch.tensor(value, dtype=torch.float64, device="cpu"))


def _drop_one(factor: float) -> Factor:
    """Return None for 1."""
    return None if factor == 1.0 else factor


class Multiplier(nn.Module):
    """`factor * x` with a constant factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def add_branch(x: Tensor, drop: nn.Module, y: Tensor) -> Tensor:
    """Return `x + drop(y)`. Where `drop` is a constant factor, the addition multiplies by it: a product of its own
    takes three times as long, several percent of an update of a narrow model. A compiler joins the two by itself."""
    if type(drop) is Multiplier and not torch.compiler.is_compiling():
        return torch.add(x, y, alpha=drop.factor)
    return x + drop(y)


def repeat(norm: nn.Module, times: int) -> nn.Module:
    """Return `norm`, which is computed so many times for each token, with the FLOPs of all of them."""
    own: Any = norm
    if hasattr(own, "flops"):
        own.flops *= times
    return norm


class PlainResidual(nn.Module):
    """`x + f(x)`."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.drop = site.drop()

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        return add_branch(x, self.drop, f(x, *args))


class PreResidual(nn.Module):
    """`x + f(scale * N(x))`."""

    factors: ClassVar[tuple[str, ...]] = ("scale",)

    def __init__(self, site: Site, scale: float = 1.0) -> None:
        super().__init__()
        self.norm, self.drop, self.scale = site.norm(), site.drop(), _drop_one(scale)

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        h = self.norm(x)
        return add_branch(x, self.drop, f(h if self.scale is None else h * self.scale, *args))


class InputScaledResidual(PreResidual):
    """`x + f(N(scale * x))`."""

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        return add_branch(x, self.drop, f(self.norm(x if self.scale is None else x * self.scale), *args))


class BranchScaledResidual(PreResidual):
    """`x + scale * f(N(x))`."""

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        y = f(self.norm(x), *args)
        return add_branch(x, self.drop, y if self.scale is None else y * self.scale)


class SumScaledResidual(PreResidual):
    """`scale * (x + f(N(x)))`."""

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        y = add_branch(x, self.drop, f(self.norm(x), *args))
        return y if self.scale is None else y * self.scale


class PostResidual(nn.Module):
    """`N(alpha * x + f(x))`."""

    factors: ClassVar[tuple[str, ...]] = ("alpha",)
    on_stream: ClassVar[tuple[str, ...]] = ("norm",)

    def __init__(self, site: Site, alpha: float = 1.0) -> None:
        super().__init__()
        self.norm, self.drop, self.alpha = site.norm(), site.drop(), _drop_one(alpha)

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        y = f(x, *args)
        return self.norm(add_branch(x if self.alpha is None else x * self.alpha, self.drop, y))


class InputPostResidual(nn.Module):
    """`alpha * h + f(h)` with `h = N(x)`: a post-norm with the norm moved to the input of the next sublayer."""

    factors: ClassVar[tuple[str, ...]] = ("alpha",)
    on_stream: ClassVar[tuple[str, ...]] = ("norm",)

    def __init__(self, site: Site, alpha: float = 1.0) -> None:
        super().__init__()
        self.norm, self.drop, self.alpha = site.norm(), site.drop(), _drop_one(alpha)

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        h = self.norm(x)
        return add_branch(h if self.alpha is None else h * self.alpha, self.drop, f(h, *args))


class SandwichResidual(nn.Module):
    """`x + after(f(before(x)))`, with gains of `after` that begin at `start`."""

    def __init__(self, site: Site, start: float = 1.0) -> None:
        super().__init__()
        self.before, self.after, self.drop = site.norm(), site.norm(start), site.drop()

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        return add_branch(x, self.drop, self.after(f(self.before(x), *args)))


class KeelResidual(nn.Module):
    """`after(alpha * x + f(before(x)))`."""

    factors: ClassVar[tuple[str, ...]] = ("alpha",)
    on_stream: ClassVar[tuple[str, ...]] = ("after",)

    def __init__(self, site: Site, alpha: float) -> None:
        super().__init__()
        self.before, self.after, self.drop, self.alpha = site.norm(), site.norm(), site.drop(), _drop_one(alpha)

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        y = f(self.before(x), *args)
        return self.after(add_branch(x if self.alpha is None else x * self.alpha, self.drop, y))


class OutputNormResidual(nn.Module):
    """`x + N(f(x))`."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.norm, self.drop = site.norm(), site.drop()

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        return add_branch(x, self.drop, self.norm(f(x, *args)))


class ScaledResidual(nn.Module):
    """`x + scale * f(N(x))` with a learnable `scale` of `size` values, all of them `initial` at the start."""

    def __init__(self, site: Site, size: int, initial: float) -> None:
        super().__init__()
        self.norm, self.drop = site.norm(), site.drop()
        self.scale = nn.Parameter(torch.full((size,), initial))

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        return add_branch(x, self.drop, self.scale * f(self.norm(x), *args))


class BottomResidual(nn.Module):
    """The attention of a B2T layer: `(N(x + f(x)), x)`."""

    on_stream: ClassVar[tuple[str, ...]] = ("norm",)

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.norm, self.drop = site.norm(), site.drop()

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> tuple[Tensor, Tensor]:
        return self.norm(add_branch(x, self.drop, f(x, *args))), x


class TopResidual(nn.Module):
    """The MLP of a B2T layer: `N(x + a + f(a))` of the attention's result (a, x)."""

    on_stream: ClassVar[tuple[str, ...]] = ("norm",)

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.norm, self.drop = site.norm(), site.drop()

    def forward(self, pair: tuple[Tensor, Tensor], f: Sublayer, *args: Any) -> Tensor:
        a, x = pair
        return self.norm(add_branch(x + a, self.drop, f(a, *args)))
