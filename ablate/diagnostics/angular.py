"""How far a hidden state turns from one layer to another."""

from __future__ import annotations

import torch
from torch import Tensor


def angular_distance(x: Tensor, y: Tensor) -> Tensor:
    """`arccos(cos(x, y)) / pi` in [0, 1] for each token (Li et al. 2024, arXiv 2412.13795, section 2).

    [..., d] and [..., d] -> [...], in float32 (float64 for float64 input). The cosine is clamped: that of a vector with
    itself may be rounded to above 1, whose arccos is NaN.
    """
    if x.dtype != torch.float64:
        x, y = x.float(), y.float()
    return torch.cosine_similarity(x, y, dim=-1).clamp(-1, 1).arccos() / torch.pi
