"""Norm layers: the operation itself. Each is a config with a `build(dim)` that gives the module.

Statistics are computed in float32 (float64 for float64 input), whatever the precision of the hidden state.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ablate.registry import Kind, Registry


class NormLayer(Kind):
    """A norm layer: a normalisation of each token's features."""

    kind: str

    def build(self, dim: int) -> nn.Module:
        """The module: [..., dim] -> [..., dim], same dtype out as in."""
        raise NotImplementedError


norm_layers: Registry[NormLayer] = Registry("norm layer", NormLayer)


def _wide(x: Tensor) -> Tensor:
    """`x` in float32 unless it is wider already."""
    return x if x.dtype == torch.float64 else x.float()


class RMSNormModule(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = _wide(x)
        return F.rms_norm(wide, self.weight.shape, self.weight.to(wide.dtype), self.eps).to(x.dtype)


class LayerNormModule(nn.Module):
    """`(x - mean) / sqrt(var + eps) * weight + bias` over the last dimension; `bias` may be None."""

    def __init__(self, dim: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = _wide(x)
        bias = None if self.bias is None else self.bias.to(wide.dtype)
        return F.layer_norm(wide, self.weight.shape, self.weight.to(wide.dtype), bias, self.eps).to(x.dtype)


@norm_layers.register
class RMSNorm(NormLayer):
    """`x / sqrt(mean(x^2) + eps) * g` (Zhang and Sennrich 2019, arXiv 1910.07467, equation 4)."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    eps: float = Field(1e-6, gt=0)
    """Added to the mean square."""

    def build(self, dim: int) -> nn.Module:
        return RMSNormModule(dim, self.eps)


@norm_layers.register
class LayerNorm(NormLayer):
    """`(x - mean) / sqrt(var + eps) * g + b` (Ba et al. 2016, arXiv 1607.06450)."""

    kind: Literal["layernorm"] = "layernorm"
    eps: float = Field(1e-6, gt=0)
    """Added to the variance."""
    bias: bool = True
    """Whether there is a learnable shift `b`."""

    def build(self, dim: int) -> nn.Module:
        return LayerNormModule(dim, self.eps, self.bias)
