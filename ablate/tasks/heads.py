"""Heads that tasks attach to an image model, on the hidden states of its patches [batch, patches, d]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SubPixelHead(nn.Module):
    """One linear layer with separate outputs for each pixel of a patch, assembled into the whole image: [batch,
    patches, d] -> [batch, channels, height, width] (sub-pixel upsampling, Shi et al. 2016, arXiv 1609.05158)."""

    def __init__(self, dim: int, channels: int, patch_size: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        _, height, width = shape
        self.grid, self.patch_size = (height // patch_size, width // patch_size), patch_size
        self.pixels = nn.Linear(dim, channels * patch_size**2)

    def forward(self, patches: Tensor) -> Tensor:
        outputs = self.pixels(patches).transpose(1, 2).unflatten(2, self.grid)
        return F.pixel_shuffle(outputs, self.patch_size)


class MaskedDecoder(nn.Module):
    """MAE's decoder: the hidden states of the visible patches [batch, kept, d] and their positions [batch, kept] -> the
    pixels of all patches [batch, patches, channels * patch_size^2].

    Narrow Pre-LN layers of timm, the same whatever placement the encoder has: a mask token replaces each masked patch,
    and each position has a learned embedding.
    """

    def __init__(self, dim: int, width: int, layers: int, heads: int, patches: int, outputs: int) -> None:
        from timm.models.vision_transformer import Block

        super().__init__()
        self.embed = nn.Linear(dim, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, patches, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.pixels = nn.Linear(width, outputs)
        nn.init.normal_(self.mask_token, std=0.02)
        nn.init.normal_(self.places, std=0.02)

    def forward(self, patches: Tensor, kept: Tensor | None = None) -> Tensor:
        seen = self.embed(patches)
        if kept is not None:
            whole = self.mask_token.to(seen.dtype).expand(len(seen), self.places.shape[1], -1)
            seen = whole.scatter(1, kept.unsqueeze(-1).expand_as(seen), seen)
        return self.pixels(self.norm(self.blocks(seen + self.places)))
