"""Published architectures that are a LLaMA with other norms, as kinds of model, since the norms are a part of them; and
named sizes: `model: llama-71m`.

Each architecture computes the same as in `transformers`, weight for weight. A placement, a norm layer or a QK-norm that
is given replaces its own; the others stay.

LLaMA's sizes are from Mix-LN (arXiv 2412.13795, table 7, and its released configurations, which give 250M a width of
768) and LayerNorm Scaling (arXiv 2502.05795), and ViT's sizes are timm's. 570m-e and 1b-e are from two-stage
pre-training (Lee et al.), with the vocabulary of GPT-2. The paper does not state the width of the MLP. With 3.5 times
the hidden width, the layers alone have 570.2M parameters, and the paper's 16.1 % less memory and 11.52 % less compute
at 570M follow to the last digit. At 1B the same factor gives the layers 1.04B parameters and 27.6 % less compute, where
the paper reports 28.33 %.
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


_LLAMA = {  # name: hidden, MLP, heads, layers
    "9m": (128, 352, 4, 4),
    "20m": (256, 688, 4, 4),
    "35m": (384, 1024, 8, 6),
    "60m": (512, 1376, 8, 8),
    "71m": (512, 1368, 8, 12),
    "130m": (768, 2048, 12, 12),
    "250m": (768, 2560, 16, 24),
    "350m": (1024, 2736, 16, 24),
    "1b": (2048, 5461, 32, 24),
    "3b": (2560, 6848, 32, 32),
    "7b": (4096, 11008, 32, 32),
    "570m-e": (1280, 4480, 20, 24),
    "1b-e": (1600, 5600, 20, 28),
}
for _name, (_hidden, _mlp, _heads, _layers) in _LLAMA.items():
    models.preset(f"llama-{_name}", "llama", hidden=_hidden, mlp=_mlp, heads=_heads, layers=_layers)

models.preset("vit-digits", "vit", hidden=48, layers=6, heads=4, patch_size=2)
models.preset("vit-glyphs", "vit", hidden=48, layers=6, heads=4, patch_size=8)  # for images of 32 x 32
models.preset("vit-tiny", "vit", hidden=192, layers=12, heads=3, patch_size=16)  # vit_tiny_patch16_224
models.preset("vit-small", "vit", hidden=384, layers=12, heads=6, patch_size=16)  # vit_small_patch16_224
