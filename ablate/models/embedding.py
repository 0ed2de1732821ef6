"""Factors of the token embedding that a norm layer or an initialisation asks for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ablate.norms import Initialization, Placement, Stack
from ablate.norms.residuals import Multiplier


class EmbeddingScale(nn.Module):
    """`scale * x` with one learnable number, [1]."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), initial))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


def build_embedding_scale(norm: Placement, init: Initialization, stack: Stack) -> nn.Module:
    """Return the factor of the embedding that the norm layer or the initialisation asks for."""
    if norm.layer.scales_embedding:
        return EmbeddingScale(stack.hidden**0.5)
    factor = init.embedding_multiplier(stack)
    return nn.Identity() if factor == 1 else Multiplier(factor)
