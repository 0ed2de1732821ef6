"""LLaMA: norms from the registry (default RMSNorm), SwiGLU, rotary embedding, causal attention, no biases, untied head.

Its fields: `ablate.models.llama_config`. Names follow `transformers`; query, key and value are one matrix, and so are
gate and up, which makes the step faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.models.attention import OptionalAttention, Sink, clip_logits, list_gates, read_starts, run_layers
from ablate.models.base import (
    Model,
    build_embedding_scale,
    build_ends,
    build_qkv_norm,
    build_site,
    make_norm_factory,
    name_sublayers,
    unwrap,
)
from ablate.models.head import CrossEntropy
from ablate.models.llama_config import Llama
from ablate.norms import Initialization, Placement, Projection, initialize
from ablate.norms.ngpt_modules import Scale, UnitQueries
from ablate.norms.residuals import Multiplier

Linear = partial(nn.Linear, bias=False)


class Rotary(nn.Module):
    """The rotary embedding's table for positions [seq] or [batch, seq]: [2, ..., seq, 1, head_dim], cosines and signed
    sines, computed in float32."""

    def __init__(self, head_dim: int, base: float) -> None:
        super().__init__()
        self.head_dim, self.base = head_dim, base

    def forward(self, position: Tensor) -> Tensor:
        half = torch.arange(0, self.head_dim, 2, device=position.device, dtype=torch.float32)
        angle = position.float().unsqueeze(-1) * self.base ** (-half / self.head_dim)  # [seq, head_dim / 2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)]).unsqueeze(-2)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotate each pair (x_i, x_{i + head_dim/2}) of [batch, seq, heads, head_dim] by its position's angle."""
    cos, sin = table.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat([second, first], -1), sin)


Attend = Callable[..., Tensor]
"""Queries [batch, heads, seq, head_dim], keys and values [batch, kv_heads, seq, head_dim], and the layer's sink if it
has one -> as the queries."""


def causal(q: Tensor, k: Tensor, v: Tensor, sink: Sink | None = None, mask: Tensor | None = None) -> Tensor:
    """Causal attention, as used in training; where there is a `mask` [batch, 1, seq, seq], to what it is true for.
    Generation uses a cache of keys and values and padding instead (see `ablate.addons.export`)."""
    if sink is not None:
        return sink(q, k, v, mask, is_causal=mask is None)
    grouped = k.shape[1] != q.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)


class Attention(OptionalAttention):
    """Self-attention, causal unless another `attend` is given. [batch, seq, hidden] -> the same."""

    writes: ClassVar[tuple[str, ...]] = ("o_proj",)

    def __init__(self, config: Llama, norm: Placement, index: int) -> None:
        stack, placed = config.stack(), norm.at(index, config.layers)
        super().__init__(config.attention, stack, index)
        self.heads, self.kv_heads, self.head_dim = stack.heads, stack.kv_heads, stack.head_dim
        width = self.heads * self.head_dim
        self.qkv_proj = Linear(config.hidden, width + 2 * self.kv_heads * self.head_dim)
        self.qkv_norm = build_qkv_norm(norm, placed, stack)
        self.query_scale: nn.Module = nn.Identity()
        self.unit = UnitQueries(self.heads, self.head_dim, config.hidden) if placed.on_sphere else None
        self.norm = norm.layer.build(width) if placed.inner_norm else nn.Identity()
        self.o_proj = Linear(width, config.hidden)

    def find_projection(self) -> nn.Linear:
        return self.qkv_proj

    def forward(self, x: Tensor, table: Tensor, attend: Attend, carry: list[Tensor]) -> Tensor:
        batch, seq, _ = x.shape
        qkv = self.qkv_norm(self.qkv_proj(x).view(batch, seq, -1, self.head_dim))
        qk, v = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        q, k = rotate(qk, table).split([self.heads, self.kv_heads], dim=2)
        q = self.query_scale(q)
        if self.values is not None:
            v = self.values(v, carry)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [batch, heads, seq, head_dim]
        if self.temperature is not None:
            q, k = self.temperature(q, k)
        if self.unit is not None:
            q, k = self.unit(q, k)
        if self.clip is not None and self.training:
            self.clip(q, k)
        y = attend(q, k, v) if self.sink is None else attend(q, k, v, self.sink)
        y = self.norm(y.transpose(1, 2).flatten(2))
        return self.o_proj(y if self.gate is None else self.gate(y, x))


class MLP(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`. [batch, seq, hidden] -> the same."""

    writes: ClassVar[tuple[str, ...]] = ("down_proj",)

    def __init__(self, config: Llama, norm: Placement, placed: Placement) -> None:
        super().__init__()
        self.gate_up_proj = Linear(config.hidden, 2 * config.mlp)
        self.scale = Scale(2 * config.mlp, config.hidden**0.5, 1.0) if placed.on_sphere else nn.Identity()
        self.norm = norm.layer.build(config.mlp) if placed.inner_norm else nn.Identity()
        self.down_proj = Linear(config.mlp, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.scale(self.gate_up_proj(x)).chunk(2, dim=-1)
        return self.down_proj(self.norm(F.silu(gate) * up))


class AttentionBlock(nn.Module):
    """One layer with attention and no MLP."""

    def __init__(self, config: Llama, norm: Placement, index: int) -> None:
        super().__init__()
        self.attn_residual = norm.wire_attn(build_site(norm, index, config.stack()))
        self.attn = Attention(config, norm, index)

    def forward(self, x: Any, table: Tensor, *carry: Tensor, attend: Attend = causal) -> Any:
        values = [*carry]
        x = self.attn_residual(x, self.attn, table, attend, values)
        return x if len(values) == len(carry) else (x, *values)


class Block(nn.Module):
    """One layer. The placement decides where its norms are:

    x ──┬── attn ──┐      x ──┬── mlp ──┐
        └─ attn_residual ─►   └─ mlp_residual ─►

    `carry`: the values of the first layer, where later ones use them; the first layer returns them beside x.
    """

    def __init__(self, config: Llama, norm: Placement, index: int) -> None:
        super().__init__()
        placed = norm.at(index, config.layers)
        self.attn_residual, self.mlp_residual = norm.wire(build_site(norm, index, config.stack()))
        self.attn = Attention(config, norm, index)
        self.mlp = MLP(config, norm, placed)

    def forward(self, x: Any, table: Tensor, *carry: Tensor, attend: Attend = causal) -> Any:
        values = [*carry]
        x = self.attn_residual(x, self.attn, table, attend, values)
        x = self.mlp_residual(x, self.mlp)
        return x if len(values) == len(carry) else (x, *values)


BLOCKS: dict[str, type[nn.Module]] = {"both": Block, "attn": AttentionBlock}
"""Sublayers of a layer -> its module."""

Layer = Callable[..., Any]
"""A block or its replacement: called, and returning, as a block does."""


class LlamaModel(Model):
    """Token ids [batch, seq] -> logits [batch, seq, vocab_size]; with targets [batch, seq] their `cross_entropy`,
    without all logits in memory at once."""

    config: Llama

    def __init__(self, config: Llama, norm: Placement, init: Initialization, vocab_size: int) -> None:
        super().__init__()
        new_norm = make_norm_factory(norm, config.hidden)
        self.config = config
        self.embed_tokens = nn.Embedding(vocab_size, config.hidden)
        self.embed_scale = build_embedding_scale(norm, init, config.stack())
        self.embed_norm = new_norm("embedding") if norm.at(0, config.layers).embedding_norm else nn.Identity()
        self.open, self.close = build_ends(norm, config.stack())
        self.placement = norm.at(0, config.layers)
        self.rotary = Rotary(config.stack().head_dim, config.rope_base)
        self.layers = nn.ModuleList(BLOCKS[config.sublayers](config, norm, i) for i in range(config.layers))
        on_sphere = self.placement.on_sphere
        self.norm = new_norm("final") if norm.final_norm and not on_sphere else nn.Identity()
        self.output_scale: nn.Module = nn.Identity()
        self.lm_head = Linear(config.hidden, vocab_size)
        self.logit_scale = Scale(vocab_size, 1.0, config.hidden**-0.5) if on_sphere else nn.Identity()
        self.criterion = CrossEntropy()
        if config.tie_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        initialize(self.projections(), init, norm, config.stack())

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        position = torch.arange(tokens.shape[1], device=tokens.device)
        layers: Iterable[Layer] = self.layers
        if self.masks_documents:
            tokens, mask = read_starts(tokens)
            layers = [partial(layer, attend=partial(causal, mask=mask)) for layer in self.layers]
        x = self.hidden_state(self.embed_tokens(tokens), position, layers)
        if targets is None:
            return self.logit_scale(self.lm_head(x))
        return self.criterion(x, self.logit_scale(self.lm_head.weight.T).T, targets)

    def hidden_state(self, x: Tensor, position: Tensor, layers: Iterable[Layer]) -> Tensor:
        """Return the head's input for embedded tokens [batch, seq, hidden] at positions [seq] or [batch, seq]."""
        state = self.open(self.embed_norm(self.embed_scale(x)))
        table = self.rotary(position)
        state = run_layers(layers, state, table, shares_values=self.config.attention.shares_values)
        return self.output_scale(self.norm(self.close(state)))

    def scale_output(self, multiplier: nn.Module) -> None:
        self.output_scale = multiplier

    def scale_queries(self, factor: float) -> None:
        for block in self.layers:
            unwrap(block).attn.query_scale = Multiplier(factor)  # type: ignore[union-attr]

    def after_update(self) -> None:
        clip_logits(self)

    def heads(self) -> Iterable[nn.Module]:
        return [self.criterion]

    def parts(self) -> dict[str, tuple[str, ...]]:
        stem = {"embedding": ("embed_tokens", "embed_scale", "embed_norm", "open"), "final_norm": ("close", "norm")}
        return {**stem, **name_sublayers("layers", self.layers), "head": ("lm_head", "logit_scale")}

    def embeddings(self) -> tuple[str, ...]:
        return ("embed_tokens",)

    def projections(self) -> Iterator[Projection]:
        yield Projection("embedding", None, self.embed_tokens.weight)
        for i, block in enumerate(self.layers):
            layer = unwrap(block)
            assert isinstance(layer, (Block, AttentionBlock))
            attn, mlp = layer.attn, getattr(layer, "mlp", None)
            sizes = [attn.heads * attn.head_dim, attn.kv_heads * attn.head_dim, attn.kv_heads * attn.head_dim]
            for role, weight in zip("qkv", attn.qkv_proj.weight.split(sizes), strict=True):
                yield Projection(role, i, weight)
            yield Projection("o", i, attn.o_proj.weight)
            if mlp is not None:
                for role, weight in zip(("gate", "up"), mlp.gate_up_proj.weight.chunk(2), strict=True):
                    yield Projection(role, i, weight)
                yield Projection("down", i, mlp.down_proj.weight)
        if not self.config.tie_embeddings:
            yield Projection("head", None, self.lm_head.weight)
        yield from list_gates(unwrap(block).attn for block in self.layers)  # type: ignore[misc]
