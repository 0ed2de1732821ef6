"""The fields of `lora`: adapters that alone are trained."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from ablate.config.base import Config, Names
from ablate.config.bounds import MOST_WIDTH
from ablate.config.errors import Problem
from ablate.models.config import ALL


class Lora(Config):
    """Fine-tuning in which adapters alone are trained, beside the matrices of a trained model (extra `hf`)."""

    rank: int = Field(8, gt=0, le=MOST_WIDTH)
    """Rows of A and columns of B (peft's r)."""
    alpha: float = Field(16.0, gt=0)
    """What an adapter gives is multiplied by alpha / rank (peft's lora_alpha)."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of what an adapter is given that is set to zero at random in training (peft's lora_dropout)."""
    targets: Names = ("attn", "mlp")
    """Which linear layers have an adapter (peft's target_modules): sublayers (attn, mlp), their layers by name
    (qkv_proj, o_proj, gate_up_proj, down_proj; of a ViT qkv, proj, fc1, fc2), or parts (layers.0, layers.0.attn).
    What warm_start.freeze names has none."""

    def validate(self, copied: Iterable[str], tensor_parallel: int) -> list[Problem]:  # type: ignore[override]
        """Return what is wrong with an experiment that has it and copies parts of a donor, by its own paths."""
        problems: list[Problem] = []
        if ALL not in copied:
            text = "adapts a trained model, and this one begins with random weights, or with a part of another's"
            problems.append(Problem("lora", f"{text}: set warm_start.from=RUN_ID and warm_start.copy=all"))
        if tensor_parallel > 1:
            text = "must be 1 with lora: an adapter is beside a whole matrix"
            problems.append(Problem("trainer.tensor_parallel", text, tensor_parallel))
        return problems
