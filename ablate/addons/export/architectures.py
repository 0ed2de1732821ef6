"""The architectures of `transformers` that a language model may be exactly, and the names of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ablate.experiment.tree import Experiment
from ablate.models.llama_config import Llama
from ablate.norms.layers import RMSNorm
from ablate.optim.parametrizations import Multipliers

HEAD = "lm_head.weight"
_FUSED = {
    "attn.qkv_proj": [f"self_attn.{part}_proj" for part in "qkv"],
    "mlp.gate_up_proj": [f"mlp.{part}_proj" for part in ("gate", "up")],
}


@dataclass(frozen=True)
class Architecture:
    """One architecture of `transformers`."""

    cls: str
    """The class of the model."""
    model_type: str
    """The name by which `transformers` finds its configuration."""
    norms: Mapping[str, str]
    """Our names of a layer's norms -> theirs."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its configuration that no other architecture has."""

    def rename(self, name: str) -> list[str]:
        """Return the names there of what the weight `name` is here: of a fused matrix those of its parts."""
        if name == HEAD:
            return [HEAD]
        for ours, parts in _FUSED.items():
            if ours in name:
                return [f"model.{name.replace(ours, part)}" for part in parts]
        for ours, theirs in {"attn.o_proj": "self_attn.o_proj", **self.norms}.items():
            name = name.replace(ours, theirs)
        return [f"model.{name}"]


_PRE = {"attn_residual.norm": "input_layernorm", "mlp_residual.norm": "post_attention_layernorm"}
_OUTPUT = {"attn_residual.norm": "post_attention_layernorm", "mlp_residual.norm": "post_feedforward_layernorm"}
_QK = {"attn.qkv_norm.q": "self_attn.q_norm", "attn.qkv_norm.k": "self_attn.k_norm"}
_ARCHITECTURES = {  # placement and what the QK-norm is over, None without one
    ("pre", None): Architecture("LlamaForCausalLM", "llama", _PRE, {"mlp_bias": False}),
    ("pre", "head"): Architecture("Qwen3ForCausalLM", "qwen3", _PRE | _QK, {"use_sliding_window": False}),
    ("olmo2", "width"): Architecture("Olmo2ForCausalLM", "olmo2", _OUTPUT | _QK),
}


def find_architecture(experiment: Experiment) -> Architecture | None:
    """Return the architecture of `transformers` that the model is, whatever its name here; None if there is none."""
    norm, model = experiment.norm, experiment.model
    assert isinstance(model, Llama)
    qk_norm = norm.qk if norm.has_qk_norm else norm.layer
    if model.sublayers != "both" or not model.layers or not norm.final_norm:
        return None
    if experiment.init.embedding_multiplier(model.stack()) != 1 or experiment.multipliers != Multipliers():
        return None
    if not isinstance(norm.layer, RMSNorm) or qk_norm != norm.layer:  # theirs have one epsilon
        return None
    return _ARCHITECTURES.get((norm.kind, norm.qk_over if norm.has_qk_norm else None))
