"""Published architectures that are a LLaMA with other norms: as kinds of model, since the norms are a part of them.

Each is what `transformers` computes under that name, weight for weight. A placement, a norm layer or a QK-norm that is
given takes the place of its own, and what is not given stays.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from ablate.models.config import models
from ablate.models.llama_config import Llama

_RMSNORM: dict[str, Any] = {"norm.layer.kind": "rmsnorm", "norm.qk.kind": "rmsnorm"}


@models.register
class Qwen3(Llama):
    """Qwen3 (Qwen Team 2025, arXiv 2505.09388): Pre-LN with RMSNorm on the queries and keys of each head."""

    kind: Literal["qwen3"] = "qwen3"  # type: ignore[assignment]
    rope_base: float = Field(1e6, gt=0)
    """Base of the rotary embedding's wavelengths."""

    defaults: ClassVar[dict[str, Any]] = {**Llama.defaults, **_RMSNORM, "norm.kind": "pre"}


@models.register
class OLMo2(Llama):
    """OLMo 2 (OLMo Team 2025, arXiv 2501.00656): RMSNorm on the output of each sublayer, and on all queries and all
    keys of a token."""

    kind: Literal["olmo2"] = "olmo2"  # type: ignore[assignment]
    rope_base: float = Field(5e5, gt=0)
    """Base of the rotary embedding's wavelengths."""

    defaults: ClassVar[dict[str, Any]] = {
        **Llama.defaults,
        **_RMSNORM,
        "norm.kind": "olmo2",
        "norm.qk_over": "width",
    }


models.preset(
    "qwen3-0.6b", "qwen3", hidden=1024, mlp=3072, layers=28, heads=16, kv_heads=8, head_dim=128, tie_embeddings=True
)
models.preset("olmo2-1b", "olmo2", hidden=2048, mlp=8192, layers=16, heads=16)
models.preset("olmo2-7b", "olmo2", hidden=4096, mlp=11008, layers=32, heads=32)
