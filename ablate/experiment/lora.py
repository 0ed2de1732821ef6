"""The fields of `lora`: adapters, the only trained parameters."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from ablate.config.base import Config, Names
from ablate.config.bounds import MOST_WIDTH
from ablate.config.errors import Problem
from ablate.models.config import ALL


class Lora(Config):
    """Fine-tuning that only trains adapters, which are added to the matrices of a trained model (extra `hf`)."""

    rank: int = Field(8, gt=0, le=MOST_WIDTH)
    """Rows of A and columns of B (peft's r)."""
    alpha: float = Field(16.0, gt=0)
    """The adapter's output is multiplied by alpha / rank (peft's lora_alpha)."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout rate of an adapter's input in training (peft's lora_dropout)."""
    targets: Names = ("attn", "mlp")
    """The linear layers with an adapter (peft's target_modules): sublayers (attn, mlp), their layers by name (qkv_proj,
    o_proj, gate_up_proj, down_proj; of a ViT qkv, proj, fc1, fc2; of a GRU input, recurrent), or parts (layers.0,
    layers.0.attn). Parts in warm_start.freeze get none."""

    def validate(self, copied: Iterable[str], tensor_parallel: int) -> list[Problem]:  # type: ignore[override]
        """Return the problems of an experiment with adapters that copies these parts of a source run, with the
        experiment's paths."""
        problems: list[Problem] = []
        if ALL not in copied:
            text = "adapts a trained model, and this one starts from random weights, or from a part of another model's"
            problems.append(Problem("lora", f"{text}: set warm_start.from=RUN_ID and warm_start.copy=all"))
        if tensor_parallel > 1:
            text = "must be 1 with lora: adapters need whole matrices"
            problems.append(Problem("trainer.tensor_parallel", text, tensor_parallel))
        return problems
