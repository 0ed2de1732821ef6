"""LLaMA's configuration. Its model: `ablate.models.llama`."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ablate.config.bounds import MOST_LAYERS, MOST_VOCABULARY, MOST_WIDTH
from ablate.config.errors import Problem
from ablate.models.config import ModelConfig, TensorPlan, models
from ablate.norms import Initialization, Placement, Stack

if TYPE_CHECKING:
    from torch import Tensor


@models.register
class Llama(ModelConfig):
    """A LLaMA language model. The default size is that of the demo."""

    kind: Literal["llama"] = "llama"
    hidden: int = Field(128, gt=0, le=MOST_WIDTH)
    """Width d of the hidden state."""
    mlp: int = Field(344, gt=0, le=MOST_WIDTH)
    """Width of the MLP."""
    layers: int = Field(6, ge=0, le=MOST_LAYERS)
    """Number L of Transformer layers. 0: embedding, final norm and head alone."""
    heads: int = Field(4, gt=0, le=MOST_WIDTH)
    """Number of attention heads."""
    kv_heads: int | None = Field(None, gt=0, le=MOST_WIDTH)
    """Number of key and value heads (grouped-query attention). None: as many as `heads`."""
    rope_base: float = Field(10000.0, gt=0)
    """Base of the rotary embedding's wavelengths."""
    tie_embeddings: bool = False
    """Whether the head uses the embedding's matrix."""
    vocab_size: int | None = Field(None, gt=0, le=MOST_VOCABULARY)
    """Size of the vocabulary. None: the tokenizer's."""

    task: ClassVar[str] = "language_modeling"
    per_token: ClassVar[bool] = True
    defaults: ClassVar[dict[str, Any]] = {"data.kind": "topics", "norm.layer.kind": "rmsnorm"}

    def build(self, norm: Placement, init: Initialization, classes: int, shape: tuple[int, ...]) -> Any:
        return resolve_name("ablate.models.llama:LlamaModel")(self, norm, init, self.vocabulary(classes))

    def stack(self) -> Stack:
        head_dim, mlp = self.hidden // self.heads, self.mlp if self.sublayers == "both" else 0
        return Stack(self.layers, self.hidden, mlp, head_dim, causal=True, token_embedding=not self.tie_embeddings)

    def layer_parameters(self) -> int:
        kv = self.hidden // self.heads * (self.kv_heads or self.heads)
        return self.layers * (2 * self.hidden * (self.hidden + kv) + 3 * self.hidden * self.stack().mlp)

    def sequence_length(self, shape: tuple[int, ...]) -> int:
        return shape[0]

    def vocabulary(self, classes: int) -> int:
        return self.vocab_size or classes

    def count_classes(self, state: Mapping[str, Tensor]) -> int:
        return len(state["embed_tokens.weight"])

    def input_shape(self, state: Mapping[str, Tensor], length: int) -> tuple[int, ...]:
        return (length,)

    def tied_weights(self) -> dict[str, str]:
        return {"lm_head.weight": "embed_tokens.weight"} if self.tie_embeddings else {}

    def tensor_plan(self) -> TensorPlan:
        kv_heads = self.kv_heads or self.heads
        kv = kv_heads * (self.hidden // self.heads)
        return TensorPlan(
            by_output=("attn.qkv_proj", "mlp.gate_up_proj"),
            by_input=("attn.o_proj", "mlp.down_proj"),
            fused={"qkv_proj.weight": [self.hidden, kv, kv], "gate_up_proj.weight": [self.mlp, self.mlp]},
            counts=("heads", "kv_heads"),
            divided={"heads": self.heads, "kv_heads": kv_heads, "mlp": self.mlp},
        )

    def narrowed(self, share: float) -> dict[str, Any]:
        fields = super().narrowed(share)
        fields["mlp"] = max(4, 4 * round(self.mlp * fields["hidden"] / self.hidden / 4))
        if self.kv_heads:
            wanted = self.kv_heads * fields["heads"] / self.heads
            fitting = [n for n in range(1, fields["heads"] + 1) if fields["heads"] % n == 0]
            fields["kv_heads"] = min(fitting, key=lambda n: abs(n - wanted))
        return fields

    def validate(self) -> list[Problem]:  # type: ignore[override]
        problems = super().validate()
        if not problems and self.hidden // self.heads % 2:
            text = "hidden / heads must be even for the rotary embedding"
            problems.append(Problem("heads", text, self.heads))
        if self.kv_heads and self.heads % self.kv_heads:
            problems.append(Problem("kv_heads", f"must divide heads ({self.heads})", self.kv_heads))
        return problems
