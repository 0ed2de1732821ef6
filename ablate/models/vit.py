"""ViT: timm's Vision Transformer with our wiring around its attention and MLP.

timm builds the patch embedding, class token, position embedding, attention, MLP, head and stochastic depth; its
`block_fn` is our `Block`. The stem and the head keep timm's initialisation. The fields: `ablate.models.vit_config`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.config.errors import ConfigError, Problem
from ablate.models.attention import OptionalAttention, clip_logits, list_gates, run_layers
from ablate.models.attention_config import AttentionConfig
from ablate.models.base import (
    Model,
    build_ends,
    build_qkv_norm,
    build_site,
    check_drop,
    make_norm_factory,
    name_sublayers,
)
from ablate.models.vit_config import ViT
from ablate.norms import Initialization, Placement, Projection, Stack, initialize
from ablate.norms.residuals import Multiplier, repeat


class NormedQKV(nn.Module):
    """timm's query, key and value projection, followed by norms: [..., dim] -> [..., 3 dim]."""

    def __init__(self, projection: nn.Linear, heads: int, norm: nn.Module) -> None:
        super().__init__()
        self.projection, self.heads, self.norm = projection, heads, norm

    @property
    def weight(self) -> Tensor:
        """The weight of the projection."""
        return self.projection.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.projection(x).unflatten(-1, (3 * self.heads, -1))).flatten(-2)


class Attention(OptionalAttention):
    """timm's attention with options: [batch, tokens, dim] -> the same."""

    def __init__(self, timm: Any, config: AttentionConfig, stack: Stack, index: int) -> None:
        super().__init__(config, stack, index)
        self.heads = stack.heads
        self.qkv, self.q_norm, self.k_norm = timm.qkv, timm.q_norm, timm.k_norm
        self.norm, self.proj = timm.norm, timm.proj

    def find_projection(self) -> nn.Linear:
        return cast(nn.Linear, self.qkv)

    def forward(self, x: Tensor, carry: list[Tensor] | None = None) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)  # [batch, heads, tokens, head_dim]
        q, k = self.q_norm(q), self.k_norm(k)
        if self.values is not None and carry is not None:
            v = self.values(v, carry)
        if self.temperature is not None:
            q, k = self.temperature(q, k)
        if self.clip is not None and self.training:
            self.clip(q, k)
        y = F.scaled_dot_product_attention(q, k, v) if self.sink is None else self.sink(q, k, v)
        y = self.norm(y.transpose(1, 2).flatten(2))
        return cast(Tensor, self.proj(y if self.gate is None else self.gate(y, x)))


class Layers(nn.Sequential):
    """Layers that use the values of the first: hidden state -> hidden state."""

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, run_layers(self, x, shares_values=True))


class AttentionBlock(nn.Module):
    """One layer with timm's attention and no MLP, in the placement's wiring. timm calls it like `Block`."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float,
        drop_path: float,
        depth: int,
        *,
        norm: Placement,
        stack: Stack,
        attention: AttentionConfig,
        **timm: Any,
    ) -> None:
        from timm.layers import DropPath

        super().__init__()
        self.attn_residual = norm.wire_attn(build_site(norm, depth, stack, partial(DropPath, drop_path)))
        if drop_path:
            check_drop(norm.at(depth, stack.depth), "model.drop_path", DropPath, self.attn_residual)
        self.attn = _attention(stack, norm, attention, depth, timm)
        self.shares_values = attention.shares_values

    def forward(self, x: Any, *carry: Tensor) -> Any:
        values = [*carry]
        x = self.attn_residual(x, self.attn, *([values] if self.shares_values else []))
        return x if len(values) == len(carry) else (x, *values)


class Block(nn.Module):
    """One layer: timm's attention and MLP in the placement's wiring.

    timm calls it with the arguments of its own block, of which `depth` is the layer's index. `carry`: the values of the
    first layer, where later ones use them; the first layer returns them beside x.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float,
        drop_path: float,
        depth: int,
        *,
        norm: Placement,
        stack: Stack,
        attention: AttentionConfig,
        **timm: Any,
    ) -> None:
        from timm.layers import DropPath, Mlp

        super().__init__()
        placed = norm.at(depth, stack.depth)
        drop = partial(DropPath, drop_path)
        self.attn_residual, self.mlp_residual = norm.wire(build_site(norm, depth, stack, drop))
        if drop_path:
            check_drop(placed, "model.drop_path", DropPath, self.attn_residual, self.mlp_residual)
        self.attn = _attention(stack, norm, attention, depth, timm)
        self.shares_values = attention.shares_values
        self.mlp = Mlp(
            dim, stack.mlp, act_layer=timm["act_layer"], norm_layer=timm["norm_layer"] if placed.inner_norm else None
        )

    def forward(self, x: Any, *carry: Tensor) -> Any:
        values = [*carry]
        x = self.attn_residual(x, self.attn, *([values] if self.shares_values else []))
        x = self.mlp_residual(x, self.mlp)
        return x if len(values) == len(carry) else (x, *values)


def _attention(stack: Stack, norm: Placement, config: AttentionConfig, index: int, timm: dict[str, Any]) -> nn.Module:
    """Return timm's attention, with the norms that the placement and `norm.qk` ask for, and the options of `config`."""
    from timm.layers import Attention as Plain

    dim, heads, new_norm, placed = stack.hidden, stack.heads, timm["norm_layer"], norm.at(index, stack.depth)
    attn: Any = Plain(dim, heads, qkv_bias=timm["qkv_bias"], scale_norm=placed.inner_norm, norm_layer=new_norm)
    if norm.has_qk_norm and norm.qk_over == "head":  # timm has a place for these
        attn.q_norm, attn.k_norm = (repeat(norm.qk.build(stack.head_dim), heads) for _ in "qk")
    elif placed.qkv_norm or norm.has_qk_norm:
        attn.qkv = NormedQKV(attn.qkv, heads, build_qkv_norm(norm, placed, stack))
    return Attention(attn, config, stack, index) if config.find_set() else cast(nn.Module, attn)


BLOCKS: dict[str, type[nn.Module]] = {"both": Block, "attn": AttentionBlock}
"""Sublayers of a layer -> its module."""


class PatchHead(nn.Module):
    """Hands the patches of all tokens [batch, prefix + patches, d] to a task's own head."""

    def __init__(self, head: nn.Module, prefix: int) -> None:
        super().__init__()
        self.head, self.prefix = head, prefix

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(tokens[:, self.prefix :])


class ViTModel(Model):
    """Images [batch, channels, height, width] -> logits [batch, classes], or what an attached head makes of them, which
    sees the patches at the places `kept` [batch, n], as the layers do, where these are given."""

    def __init__(
        self, config: ViT, norm: Placement, init: Initialization, classes: int, shape: tuple[int, ...]
    ) -> None:
        from timm.models.vision_transformer import VisionTransformer

        super().__init__()
        channels, height, width = shape
        if height % config.patch_size or width % config.patch_size:  # timm would leave the last pixels out
            text = f"must divide the height and width of the images ({height} x {width})"
            raise ConfigError([Problem("model.patch_size", text, config.patch_size)])

        def new_norm(dim: int, **placed: Any) -> nn.Module:  # timm wants a function and passes device and dtype
            return norm.layer.build(dim)

        self.config = config
        self.vit = VisionTransformer(
            img_size=(height, width),
            patch_size=config.patch_size,
            in_chans=channels,
            num_classes=classes,
            embed_dim=config.hidden,
            depth=config.layers,
            num_heads=config.heads,
            mlp_ratio=config.mlp_ratio,
            drop_path_rate=config.drop_path,
            final_norm=norm.final_norm,
            norm_layer=new_norm,
            block_fn=partial(BLOCKS[config.sublayers], norm=norm, stack=config.stack(), attention=config.attention),
        )
        if config.attention.shares_values:
            self.vit.blocks = Layers(*self.vit.blocks)
        place_norm = make_norm_factory(norm, config.hidden)
        if norm.at(0, config.layers).embedding_norm:
            self.vit.norm_pre = place_norm("embedding")
        if norm.final_norm:
            self.vit.norm = place_norm("final")
        self.open, self.close = build_ends(norm, config.stack())
        self.placement = norm.at(0, config.layers)
        initialize(self.projections(), init, norm, config.stack())

    def forward(self, images: Tensor, kept: Tensor | None = None) -> Tensor:
        vit: Any = self.vit
        tokens, prefix = vit._pos_embed(vit.patch_embed(images)), vit.num_prefix_tokens
        if kept is None:
            logits: Tensor = vit.forward_head(self._run_layers(tokens))
            return logits
        places = kept.unsqueeze(-1).expand(-1, -1, tokens.shape[-1])
        tokens = torch.cat([tokens[:, :prefix], tokens[:, prefix:].gather(1, places)], 1)
        output: Tensor = vit.head.head(vit.head_drop(self._run_layers(tokens))[:, prefix:], kept)
        return output

    def _run_layers(self, tokens: Tensor) -> Tensor:
        vit: Any = self.vit
        normed: Tensor = vit.norm(self.close(vit.blocks(self.open(vit.norm_pre(tokens)))))
        return normed

    def attach_head(self, head: nn.Module) -> None:
        self.vit.global_pool = ""  # timm then hands all tokens on
        self.vit.head = PatchHead(head, self.vit.num_prefix_tokens)

    def scale_output(self, multiplier: nn.Module) -> None:
        self.vit.head_drop = multiplier  # which timm applies to the input of the head

    def scale_queries(self, factor: float) -> None:
        for block in self.vit.blocks:
            norm, multiplier = block.attn.q_norm, Multiplier(factor)
            block.attn.q_norm = multiplier if isinstance(norm, nn.Identity) else nn.Sequential(norm, multiplier)

    def after_update(self) -> None:
        clip_logits(self)

    def blocks(self) -> nn.Sequential:
        return self.vit.blocks

    def parts(self) -> dict[str, tuple[str, ...]]:
        stem = {
            "embedding.patch": ("vit.patch_embed",),
            "embedding.position": ("vit.pos_embed", "vit.cls_token"),
            "embedding.norm": ("vit.norm_pre", "open"),
            "final_norm": ("close", "vit.norm"),
        }
        return {**stem, **name_sublayers("vit.blocks", self.vit.blocks), "head": ("vit.head",)}

    def embeddings(self) -> tuple[str, ...]:
        return ("vit.patch_embed", "vit.pos_embed", "vit.cls_token")

    def count_uses(self, part: str) -> int:
        patches = self.vit.patch_embed.num_patches
        # the patch embedding does not make the class token, which the head sees alone
        in_head = patches if isinstance(self.vit.head, PatchHead) else 1
        other = {"embedding.patch": patches, "embedding.position": 0, "head": in_head}
        return int(other.get(part, patches + self.vit.num_prefix_tokens))

    def no_weight_decay(self) -> set[str]:
        return {f"vit.{name}" for name in self.vit.no_weight_decay()}

    def projections(self) -> Iterator[Projection]:
        for i, block in enumerate(self.vit.blocks):
            for role, weight in zip("qkv", block.attn.qkv.weight.chunk(3), strict=True):
                yield Projection(role, i, weight)
            yield Projection("o", i, block.attn.proj.weight)
            if hasattr(block, "mlp"):
                yield Projection("up", i, block.mlp.fc1.weight)
                yield Projection("down", i, block.mlp.fc2.weight)
        yield from list_gates(block.attn for block in self.vit.blocks)
