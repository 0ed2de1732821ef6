"""The modules of the options of the attention, for every family that has them. The options: `attention_config`.

Each is built only where its option is set. Their parameters are vectors, which never decay, but for the matrix of a
gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.distributed import ranks
from ablate.models.attention_config import AttentionConfig
from ablate.norms import Projection, Stack


class Gate(nn.Module):
    """`sigmoid(W x) * y` for the attention's input x [batch, tokens, hidden] and its output y [batch, tokens, heads *
    head_dim], with W [gates, hidden]: a gate for each feature of y, or for each head.

    A fused kernel of attention is not affected. Cost: 2 hidden * gates FLOPs for each token.
    """

    def __init__(self, config: AttentionConfig, stack: Stack) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.count_gates(stack), stack.hidden))  # drawn by `init`
        self.role = f"{config.gate}_gate"
        """Of the projection, for `init`."""
        self.optimizer_role = "gates" if config.gate == "headwise" else "matrices"
        """Of the parameters (`ablate.optim.groups`)."""

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        gates = F.linear(x, self.weight).sigmoid().unsqueeze(-1)
        return (y.unflatten(-1, (len(self.weight), -1)) * gates).flatten(-2)


class Sink(nn.Module):
    """Attention with a sink: weights `exp(s_j) / (exp(z) + sum_j exp(s_j))`, with a learned z for each head of the
    queries, or z = 0.

    This is attention times sigmoid(logsumexp(s) - z), but torch's kernels do not return that logsumexp. Instead the
    sink is a key in front of all others, of logit z and value 0, so that the kernels stay the fused ones, without a
    matrix of all logits in memory. Where attention is causal a query in front, whose output is dropped, keeps key and
    query of a token at the same place; a learned z takes one more feature: z * sqrt(head_dim) of each query, 1 of the
    sink and 0 of all other keys. Cost: copies of queries, keys and values, (tokens + 1)^2 (head_dim + 1) products
    instead of tokens^2 head_dim, and on a GPU kernels pad that width to a multiple of 8. Under autocast z is rounded to
    bfloat16, as queries are.
    """

    def __init__(self, config: AttentionConfig, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads)) if config.sink == "learned" else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Queries [batch, heads, seq, head_dim], keys and values [batch, kv_heads, keys, head_dim] -> as the queries.
        `mask`, as attention takes it: [..., seq, keys]."""
        seq, dim = q.shape[2:]
        k, v = F.pad(k, (0, 0, 1, 0)), F.pad(v, (0, 0, 1, 0))
        if self.weight is not None:
            logits = (self.weight * dim**0.5).to(q.dtype).view(-1, 1, 1).expand(*q.shape[:-1], 1)
            is_sink = F.pad(k.new_ones(1), (0, k.shape[2] - 1)).view(-1, 1).expand(*k.shape[:-1], 1)
            q, k, v = torch.cat([q, logits], -1), torch.cat([k, is_sink], -1), F.pad(v, (0, 1))
        if mask is not None:
            mask = F.pad(mask, (1, 0), value=mask.dtype == torch.bool)
        elif is_causal:
            q = F.pad(q, (0, 0, 1, 0))
        grouped = k.shape[1] != q.shape[1]
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=is_causal, scale=dim**-0.5, enable_gqa=grouped
        )
        return y[:, :, -seq:, :dim]


class ValueResidual(nn.Module):
    """`a V_1 + b V_l` for the values of layer l, of the heads of keys and values, in any order of dimensions."""

    def __init__(self, config: AttentionConfig, index: int) -> None:
        super().__init__()
        is_learned = config.value_residual == "learned" and index > 0
        self.weight = nn.Parameter(torch.full((2,), 0.5)) if is_learned else None

    def forward(self, v: Tensor, carry: list[Tensor]) -> Tensor:
        """`carry` holds V_1; in the first layer it is empty and gets it."""
        if not carry:
            carry.append(v.clone())  # a view would keep queries and keys in memory too, and trouble FSDP
            return v
        a, b = (0.5, 0.5) if self.weight is None else self.weight.to(v.dtype)
        return a * carry[0] + b * v


class Temperature(nn.Module):
    """Queries and keys [batch, heads, tokens, head_dim] -> those whose product, over sqrt(head_dim), is
    `exp(min(t, ln 100)) cos(q, k)`, with a learned t for each head of the queries. A constant factor of the queries,
    such as a parametrisation's, has no effect: a cosine needs none to be of the same size at every width."""

    eps = 1e-12
    """Added to the mean square of a query or key."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((heads,), math.log(10)))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        dim = q.shape[-1]
        q, k = F.rms_norm(q, (dim,), eps=self.eps), F.rms_norm(k, (dim,), eps=self.eps)  # of length sqrt(dim)
        factor = self.weight.clamp(max=math.log(100)).exp() / dim**0.5
        return q * factor.to(q.dtype).view(-1, 1, 1), k


class QKClip(nn.Module):
    """The largest logit of each head in training since the last update, and what that makes of the weights.

    The logits are computed a second time, one head after another, as torch's kernels do not return them: the memory of
    one head's logits of the batch, and a third more FLOPs of a causal attention in training. They are rounded as
    queries and keys are. A layer that is computed again in the backward pass finds the same maximum again.
    """

    largest: Tensor

    def __init__(self, limit: float, stack: Stack) -> None:
        super().__init__()
        self.limit, self.kv_heads, self.causal = limit, stack.kv_heads, stack.causal
        # it is 0 between two updates, and therefore in no checkpoint; one that is below 0 is of no interest
        self.register_buffer("largest", torch.zeros(stack.heads), persistent=False)

    @torch.no_grad()
    def forward(self, q: Tensor, k: Tensor) -> None:
        """Queries [batch, heads, seq, head_dim], keys [batch, kv_heads, seq, head_dim]."""
        group, found = q.shape[1] // k.shape[1], []
        for head in range(q.shape[1]):
            logits = q[:, head] @ k[:, head // group].mT
            found.append((logits.tril_() if self.causal else logits).amax())
        logits = torch.stack(found).to(self.largest.dtype) / q.shape[-1] ** 0.5
        self.largest.copy_(torch.maximum(self.largest, logits))

    def find_factors(self, largest: Tensor) -> Tensor:
        """Return the factors of the weights by the largest logit of each head of the queries: those of all heads of the
        queries, then of the keys, then of the values, which are 1."""
        wanted = (self.limit / largest).clamp(max=1)
        keys = wanted.view(self.kv_heads, -1).amin(1).sqrt()
        queries = (wanted / keys.repeat_interleave(len(wanted) // self.kv_heads)).clamp(max=1)
        return torch.cat([queries, keys, torch.ones_like(keys)])


class OptionalAttention(nn.Module):
    """The base of an attention with options; each of its modules is None where the option is not set."""

    def __init__(self, config: AttentionConfig, stack: Stack, index: int) -> None:
        super().__init__()
        self.gate = None if config.gate == "none" else Gate(config, stack)
        self.sink = None if config.sink == "none" else Sink(config, stack.heads)
        self.values = ValueResidual(config, index) if config.shares_values else None
        self.temperature = Temperature(stack.heads) if config.temperature else None
        self.clip = None if config.qk_clip is None else QKClip(config.qk_clip, stack)

    def find_projection(self) -> nn.Linear:
        """Return the layer whose outputs are the queries of all heads, then their keys, then their values."""
        raise NotImplementedError


def list_gates(attentions: Iterable[nn.Module]) -> Iterator[Projection]:
    """Yield the matrices of the gates of the layers' `attentions`. A model names them after all its others, which then
    start with the same values as without gates."""
    for index, attention in enumerate(attentions):
        if isinstance(attention, OptionalAttention) and attention.gate is not None:
            yield Projection(attention.gate.role, index, attention.gate.weight)


@torch.no_grad()
def clip_logits(model: nn.Module) -> None:
    """Scale the weights of queries and keys of each head whose largest logit since the last call was above the limit,
    on any rank (`QKClip`)."""
    attentions = [(part, part.clip) for part in model.modules() if isinstance(part, OptionalAttention) and part.clip]
    if not attentions:
        return
    found = ranks.gather(torch.stack([clip.largest for _, clip in attentions]).float()).amax(0)
    for (attention, clip), largest in zip(attentions, found, strict=True):
        clip.largest.zero_()
        linear, factors = attention.find_projection(), clip.find_factors(largest)
        for parameter in (linear.weight, linear.bias):
            if parameter is None or not parameter.requires_grad:
                continue
            by_row = factors.repeat_interleave(len(parameter) // len(factors)).to(parameter.device)
            by_row = by_row.view(-1, *[1] * (parameter.ndim - 1))
            if mesh := getattr(parameter, "device_mesh", None):  # a shard
                from torch.distributed.tensor import DTensor, Replicate

                by_row = DTensor.from_local(by_row, mesh, [Replicate()] * mesh.ndim)
            parameter.mul_(by_row)


def read_starts(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return token ids [batch, seq] without the marks of the first token of each document
    (`ablate.data.text.layouts.mark_starts`), and which tokens each may attend to: the earlier ones of its own document
    and itself [batch, 1, seq, seq]."""
    starts = tokens < 0
    documents = starts.cumsum(-1)
    same = documents.unsqueeze(-1) == documents.unsqueeze(-2)
    return torch.where(starts, ~tokens, tokens), same.tril().unsqueeze(1)


def run_layers(layers: Iterable[Callable[..., Any]], x: Any, *given: Any, shares_values: bool) -> Any:
    """Return the state x after `layers`, each called with it and what is `given`. The first layer of a model that
    `shares_values` returns (state, V_1), and all later ones take V_1 too."""
    carry: Sequence[Tensor] = ()
    for layer in layers:
        x = layer(x, *given, *carry)
        if shares_values and not carry:
            x, *carry = x
    return x
