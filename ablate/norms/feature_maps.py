"""Norm layers on the feature maps of a convolution, [batch, channels, height, width]."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ablate.norms.layers import NormLayer

Over = Literal["positions", "channels"]
"""The axis of the statistics: the positions of each channel of an image, or the channels of each position."""


class ChannelsFirst(nn.Module):
    """A norm layer on the channels of [batch, channels, height, width]."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return y


class OverPositions(nn.Module):
    """A `statistic` over the positions of each channel of [batch, channels, height, width], and a gain for each channel
    (`weight`)."""

    def __init__(self, statistic: nn.Module, channels: int) -> None:
        super().__init__()
        self.statistic = statistic
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        y: Tensor = self.statistic(wide.flatten(2)).view_as(wide)
        return (y * self.weight.view(-1, 1, 1).to(wide.dtype)).to(x.dtype)


def build_on_maps(layer: NormLayer, over: Over, channels: int, positions: int) -> nn.Module:
    """Return `layer` on maps of `channels` with so many positions each. A layer that norms each feature alone, such as
    BatchNorm, takes the channels as its features, whatever the statistics of the others are over."""
    if over == "channels" or layer.per_feature:
        return ChannelsFirst(layer.build(channels))
    return OverPositions(layer.build_statistic(positions), channels)
