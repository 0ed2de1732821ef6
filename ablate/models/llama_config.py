"""LLaMA's configuration. Its model: `ablate.models.llama`."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ablate.config.bounds import MOST_LAYERS, MOST_VOCABULARY, MOST_WIDTH
from ablate.config.errors import Problem
from ablate.models.attention_config import AttentionConfig, WithAttention
from ablate.models.config import TensorPlan, models
from ablate.norms import ASKS, Initialization, Placement, Stack

if TYPE_CHECKING:
    from torch import Tensor


@models.register
class Llama(WithAttention):
    """A LLaMA language model. The default size is the demo's."""

    kind: Literal["llama"] = "llama"
    hidden: int = Field(128, gt=0, le=MOST_WIDTH)
    """Width d of the hidden state."""
    mlp: int = Field(344, gt=0, le=MOST_WIDTH)
    """Width of the MLP."""
    layers: int = Field(6, ge=0, le=MOST_LAYERS)
    """Number L of Transformer layers. 0: embedding, final norm and head alone."""
    heads: int = Field(4, gt=0, le=MOST_WIDTH)
    """Number of attention heads."""
    sublayers: Literal["both", "attn"] = "both"
    """The sublayers of a layer: attention and MLP, or attention alone. A placement's factors depend on the number of
    layers, not of sublayers."""
    kv_heads: int | None = Field(None, gt=0, le=MOST_WIDTH)
    """Number of key and value heads (grouped-query attention). None: as many as `heads`."""
    head_dim: int | None = Field(None, gt=0, le=MOST_WIDTH)
    """Width of one attention head. None: `hidden` / `heads`."""
    rope_base: float = Field(10000.0, gt=0)
    """Base of the rotary embedding's wavelengths (theta)."""
    tie_embeddings: bool = False
    """Whether the head uses the embedding's matrix."""
    vocab_size: int | None = Field(None, gt=0, le=MOST_VOCABULARY)
    """Size of the vocabulary. None: the tokenizer's."""
    attention: AttentionConfig = AttentionConfig()
    """Options of the attention: a gate, a sink, a value residual, a temperature, QK-clip."""

    task: ClassVar[str] = "language_modeling"
    per_token: ClassVar[bool] = True
    scales: ClassVar[bool] = True
    masks_documents: ClassVar[bool] = True
    mlp_matrices: ClassVar[int] = 3
    honours: ClassVar[frozenset[str]] = frozenset(ASKS)
    defaults: ClassVar[dict[str, Any]] = {"data.kind": "topics", "norm.layer.kind": "rmsnorm"}

    def build(self, norm: Placement, init: Initialization, classes: int, shape: tuple[int, ...]) -> Any:
        return resolve_name("ablate.models.llama:LlamaModel")(self, norm, init, self.vocabulary(classes))

    def stack(self) -> Stack:
        mlp = self.mlp if self.sublayers == "both" else 0
        heads = self.heads, self.kv_heads or self.heads, self.head_dim or self.hidden // self.heads
        return Stack(self.layers, self.hidden, mlp, *heads, causal=True, token_embedding=not self.tie_embeddings)

    def vocabulary(self, classes: int) -> int:
        return self.vocab_size or classes

    def count_classes(self, state: Mapping[str, Tensor]) -> int:
        return len(state["embed_tokens.weight"])

    def tied_weights(self) -> dict[str, str]:
        return {"lm_head.weight": "embed_tokens.weight"} if self.tie_embeddings else {}

    def tensor_plan(self) -> TensorPlan:
        stack = self.stack()
        q, kv = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
        return TensorPlan(
            by_output=("attn.qkv_proj", "mlp.gate_up_proj"),
            by_input=("attn.o_proj", "mlp.down_proj"),
            fused={"qkv_proj.weight": [q, kv, kv], "gate_up_proj.weight": [self.mlp, self.mlp]},
            counts=("heads", "kv_heads"),
            divided={"heads": self.heads, "kv_heads": stack.kv_heads, "mlp": self.mlp},
        )

    def narrowed(self, share: float) -> dict[str, Any]:
        fields = super().narrowed(share)
        fields["mlp"] = max(4, 4 * round(self.mlp * fields["hidden"] / self.hidden / 4))
        if self.kv_heads:
            wanted = self.kv_heads * fields["heads"] / self.heads
            fitting = [n for n in range(1, fields["heads"] + 1) if fields["heads"] % n == 0]
            fields["kv_heads"] = min(fitting, key=lambda n: abs(n - wanted))
        return fields

    def resized(self, hidden: int) -> dict[str, Any]:
        shared = {"kv_heads": self.kv_heads * hidden // self.hidden} if self.kv_heads else {}
        return {**super().resized(hidden), "mlp": max(1, round(self.mlp * hidden / self.hidden)), **shared}

    def validate(self) -> list[Problem]:  # type: ignore[override]
        problems = super().validate()
        if self.head_dim is not None and self.head_dim % 2:
            problems.append(Problem("head_dim", "must be even for the rotary embedding", self.head_dim))
        elif not problems and self.stack().head_dim % 2:
            text = "hidden / heads must be even for the rotary embedding"
            problems.append(Problem("heads", text, self.heads))
        if self.kv_heads and self.heads % self.kv_heads:
            problems.append(Problem("kv_heads", f"must divide heads ({self.heads})", self.kv_heads))
        return problems
