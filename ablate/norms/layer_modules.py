"""The modules of the norm layers. Their configurations are in `layers`, which does not import torch.

Statistics are computed in float32 (float64 for float64 input), whatever the precision of the hidden state. Without
`affine` a module has neither gain nor shift.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def widen(x: Tensor) -> Tensor:
    """Return `x` in float32, or unchanged if it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which products have the dtype of their factors on the device of `x`; the meta device has no
    autocast."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def _cast(parameter: Tensor | None, like: Tensor) -> Tensor | None:
    """Return `parameter`, if there is one, in the dtype of `like`."""
    return None if parameter is None else parameter.to(like.dtype)


def _build_gain(dim: int, affine: bool) -> nn.Parameter | None:
    return nn.Parameter(torch.ones(dim)) if affine else None


class RMSNormModule(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension."""

    def __init__(self, dim: int, eps: float, affine: bool = True) -> None:
        super().__init__()
        self.weight = _build_gain(dim, affine)
        self.dim, self.eps = dim, eps

    def forward(self, x: Tensor) -> Tensor:
        wide = widen(x)
        return F.rms_norm(wide, (self.dim,), _cast(self.weight, wide), self.eps).to(x.dtype)


class PreAffineModule(RMSNormModule):
    """RMSNorm of `scale * x`, with `scale` from 1."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__(dim, eps)
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = widen(x)
        return super().forward(wide * self.scale.to(wide.dtype)).to(x.dtype)


class GatedNormModule(RMSNormModule):
    """`y * sigmoid(up silu(down y))`, y the RMSNorm of x, with `down` [rank, dim] and `up` [dim, rank]."""

    readouts: ClassVar[tuple[str, ...]] = ("down",)
    expansions: ClassVar[tuple[str, ...]] = ("up",)

    def __init__(self, dim: int, eps: float, rank: int, std: float) -> None:
        super().__init__(dim, eps)
        self.down, self.up = nn.Parameter(torch.empty(rank, dim)), nn.Parameter(torch.empty(dim, rank))
        for matrix in (self.down, self.up):
            nn.init.normal_(matrix, std=std)
        self.flops = 4 * dim * rank  # of one token, in the forward pass

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(widen(x))
        with without_autocast(y):
            gate = F.linear(F.silu(F.linear(y, self.down.to(y.dtype))), self.up.to(y.dtype))
        return (y * gate.sigmoid()).to(x.dtype)


class OffsetRMSNormModule(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * (1 + weight)` over the last dimension, with `weight` from 0."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = widen(x)
        return F.rms_norm(wide, self.weight.shape, 1 + self.weight.to(wide.dtype), self.eps).to(x.dtype)


class LayerNormModule(nn.Module):
    """`(x - mean) / sqrt(var + eps) * weight + bias` over the last dimension; `bias` may be None."""

    def __init__(self, dim: int, eps: float, bias: bool, affine: bool = True) -> None:
        super().__init__()
        self.weight = _build_gain(dim, affine)
        self.bias = nn.Parameter(torch.zeros(dim)) if bias and affine else None
        self.dim, self.eps = dim, eps

    def forward(self, x: Tensor) -> Tensor:
        wide = widen(x)
        weight, bias = _cast(self.weight, wide), _cast(self.bias, wide)
        return F.layer_norm(wide, (self.dim,), weight, bias, self.eps).to(x.dtype)


class CenterNormModule(nn.Module):
    """`(x - mean(x)) * weight` over the last dimension."""

    def __init__(self, dim: int, affine: bool = True) -> None:
        super().__init__()
        self.weight = _build_gain(dim, affine)

    def forward(self, x: Tensor) -> Tensor:
        wide = widen(x)
        centered = wide - wide.mean(-1, keepdim=True)
        return (centered if self.weight is None else centered * self.weight.to(wide.dtype)).to(x.dtype)


class PartialRMSNormModule(nn.Module):
    """`x / sqrt(mean(x[:k]^2) + eps) * weight` over the last dimension, with the mean over the first `k` features."""

    def __init__(self, dim: int, k: int, eps: float, affine: bool = True) -> None:
        super().__init__()
        self.weight = _build_gain(dim, affine)
        self.k, self.eps = k, eps

    def forward(self, x: Tensor) -> Tensor:
        wide = widen(x)
        scaled = wide * torch.rsqrt(wide[..., : self.k].square().mean(-1, keepdim=True) + self.eps)
        return (scaled if self.weight is None else scaled * self.weight.to(wide.dtype)).to(x.dtype)


class GroupNormModule(nn.Module):
    """`(x - mean) / sqrt(var + eps) * weight + bias` with mean and variance over each of `groups` groups of a token's
    features. `nn.GroupNorm` would pool them over the tokens too and so use future tokens."""

    def __init__(self, dim: int, groups: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.groups, self.eps = groups, eps

    def forward(self, x: Tensor) -> Tensor:
        grouped = widen(x).unflatten(-1, (self.groups, -1))
        normed = F.layer_norm(grouped, grouped.shape[-1:], eps=self.eps).flatten(-2)
        return torch.addcmul(self.bias.to(normed.dtype), normed, self.weight.to(normed.dtype)).to(x.dtype)


class BatchNormModule(nn.Module):
    """`(x - mean) / sqrt(var + eps) * weight + bias` with mean and variance of each feature over batch and tokens while
    training, and with their running averages afterwards."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, dim: int, eps: float, momentum: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))
        self.eps, self.momentum = eps, momentum

    def forward(self, x: Tensor) -> Tensor:
        wide = widen(x).flatten(0, -2)
        mean, var = self.running_mean.to(wide.dtype), self.running_var.to(wide.dtype)
        weight, bias = self.weight.to(wide.dtype), self.bias.to(wide.dtype)
        normed = F.batch_norm(wide, mean, var, weight, bias, self.training, self.momentum, self.eps)
        if mean.dtype != self.running_mean.dtype:  # then the averages were updated in a copy
            self.running_mean.copy_(mean)
            self.running_var.copy_(var)
        return normed.view(x.shape).to(x.dtype)


class DynamicTanhModule(nn.Module):
    """`weight * tanh(alpha * x) + bias` with a learnable scalar `alpha`, [1]."""

    def __init__(self, dim: int, alpha: float) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), alpha))
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = widen(x)
        alpha, weight, bias = (p.to(wide.dtype) for p in (self.alpha, self.weight, self.bias))
        return torch.addcmul(bias, weight, torch.tanh(alpha * wide)).to(x.dtype)


class DynamicErfModule(DynamicTanhModule):
    """`weight * erf(alpha * x + shift) + bias` with learnable scalars `alpha` and `shift`, [1]."""

    def __init__(self, dim: int, alpha: float) -> None:
        super().__init__(dim, alpha)
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        wide = widen(x)
        alpha, shift, weight, bias = (p.to(wide.dtype) for p in (self.alpha, self.shift, self.weight, self.bias))
        return torch.addcmul(bias, weight, torch.erf(alpha * wide + shift)).to(x.dtype)
