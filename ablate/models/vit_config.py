"""ViT's configuration. Its model: `ablate.models.vit`."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ablate.config.bounds import MOST_LAYERS, MOST_PIXELS, MOST_WIDTH
from ablate.models.attention_config import AttentionConfig, WithAttention
from ablate.models.config import models
from ablate.norms import ASKS, Initialization, Placement, Stack

if TYPE_CHECKING:
    from torch import Tensor


@models.register
class ViT(WithAttention):
    """A Vision Transformer. The default size is for 8 x 8 digits."""

    kind: Literal["vit"] = "vit"
    hidden: int = Field(48, gt=0, le=MOST_WIDTH)
    """Width d of the hidden state."""
    layers: int = Field(6, ge=0, le=MOST_LAYERS)
    """Number L of Transformer layers. 0: embedding, final norm and head alone."""
    heads: int = Field(4, gt=0, le=MOST_WIDTH)
    """Number of attention heads."""
    sublayers: Literal["both", "attn"] = "both"
    """The sublayers of a layer: attention and MLP, or attention alone. A placement's factors depend on the number of
    layers, not of sublayers."""
    patch_size: int = Field(2, gt=0, le=MOST_PIXELS)
    """Side length of a square patch, in pixels."""
    mlp_ratio: float = Field(4.0, gt=0, le=MOST_WIDTH)
    """Width of the MLP divided by `hidden`."""
    drop_path: float = Field(0.0, ge=0, lt=1)
    """Stochastic depth: rate of the last layer, rising linearly from 0 at the first."""
    attention: AttentionConfig = AttentionConfig()
    """Options of the attention: a gate, a sink, a value residual, a temperature, QK-clip."""

    task: ClassVar[str] = "image_classification"
    honours: ClassVar[frozenset[str]] = frozenset(ASKS) - {"embedding_scale", "embedding_multiplier", "sphere"}
    takes_head: ClassVar[bool] = True
    scales: ClassVar[bool] = True
    defaults: ClassVar[dict[str, Any]] = {"data.kind": "digits", "norm.layer.kind": "layernorm"}

    def stack(self) -> Stack:
        mlp, head_dim = int(self.hidden * self.mlp_ratio), self.hidden // self.heads
        mlp = mlp if self.sublayers == "both" else 0
        heads = self.heads, self.heads, head_dim
        return Stack(self.layers, self.hidden, mlp, *heads, causal=False, token_embedding=False)

    def sequence_length(self, shape: tuple[int, ...]) -> int:
        _, height, width = shape
        return 1 + (height // self.patch_size) * (width // self.patch_size)

    def count_classes(self, state: Mapping[str, Tensor]) -> int:
        return len(state["vit.head.weight"])

    def input_shape(self, state: Mapping[str, Tensor], length: int) -> tuple[int, ...]:
        patches = state["vit.patch_embed.proj.weight"]
        side = int((state["vit.pos_embed"].shape[1] - 1) ** 0.5) * patches.shape[-1]
        return patches.shape[1], side, side

    def build(self, norm: Placement, init: Initialization, classes: int, shape: tuple[int, ...]) -> Any:
        return resolve_name("ablate.models.vit:ViTModel")(self, norm, init, classes, shape)
