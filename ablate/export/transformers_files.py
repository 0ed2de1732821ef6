"""A language model as `transformers` loads it: as its own LLaMA where that is the same, otherwise with its code."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate.config.errors import AblateError
from ablate.experiment.tree import Experiment
from ablate.export import tokenizer
from ablate.export.sources import Sources, blueprint
from ablate.training.trained import Source

TEMPLATE = Path(__file__).with_name("modeling_template.py")
CODE, HEAD = "modeling_ablate.py", "lm_head.weight"
MARK = """\
LlamaModel: Any = nn.Module  # the code of the trained model takes the place of these two
causal: Any = None
"""
TABLE = "CLASSES: dict[str, type[nn.Module]] = {}"
AUTO = {
    "AutoConfig": "AblateConfig",
    "AutoModel": "AblateModel",
    "AutoModelForCausalLM": "AblateForCausalLM",
    "AutoModelForSequenceClassification": "AblateForSequenceClassification",
}


@dataclass(frozen=True)
class Files:
    """What is written."""

    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    words: str
    texts: Mapping[str, str] = field(default_factory=dict)
    """File name -> content."""


def files(source: Source) -> Files:
    """Whatever suits. Raises AblateError for what is no language model, or cannot be written down."""
    if (kind := source.experiment.model.kind) != "llama":
        raise AblateError(
            f"hf is for language models, this is a {kind}. Accepted for it: timm, consolidated, safetensors."
        )
    return plain(source) if is_plain(source.experiment) else own(source)


def is_plain(experiment: Experiment) -> bool:
    """Whether the model is `transformers`' LLaMA."""
    norm, model = experiment.norm, experiment.model
    if model.sublayers != "both" or not model.layers:
        return False
    return norm.kind == "pre" and norm.layer.kind == "rmsnorm" and norm.final_norm


def plain(source: Source) -> Files:
    """As `LlamaForCausalLM`: the names are its own, and fused matrices are split."""
    model: Any = source.experiment.model
    heads, kv_heads = model.heads, model.kv_heads or model.heads
    width = model.hidden // heads
    weights: dict[str, Tensor] = {}
    for name, value in source.state.items():
        if name == HEAD:
            if not model.tie_embeddings:
                weights[name] = value
        elif name.endswith("attn.qkv_proj.weight"):
            for part, rows in zip("qkv", value.split([heads * width, kv_heads * width, kv_heads * width]), strict=True):
                weights[_layer(name, "attn.qkv_proj", f"self_attn.{part}_proj")] = rows.clone()
        elif name.endswith("mlp.gate_up_proj.weight"):
            for part, rows in zip(("gate", "up"), value.chunk(2), strict=True):
                weights[_layer(name, "gate_up_proj", f"{part}_proj")] = rows.clone()
        else:
            weights[f"model.{_renamed(name)}"] = value
    eps: float = getattr(source.experiment.norm.layer, "eps")  # noqa: B009 - a field of RMSNorm
    own = {"intermediate_size": model.mlp, "num_key_value_heads": kv_heads, "head_dim": width, "rms_norm_eps": eps}
    own |= {"rope_theta": model.rope_base, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_common(source), **own}
    return Files(config, weights, "LlamaForCausalLM of transformers")


_NAMES = {
    "attn.o_proj": "self_attn.o_proj",
    "attn_residual.norm": "input_layernorm",
    "mlp_residual.norm": "post_attention_layernorm",
}


def restored(source: Source, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights that `transformers` has trained on from `files(source)`, by our own names."""
    if not is_plain(source.experiment):
        found = {name if name == HEAD else name.removeprefix("model."): value for name, value in weights.items()}
    else:
        found = {}
        for name in source.state:
            if name == HEAD:
                parts = [HEAD]
            elif name.endswith("attn.qkv_proj.weight"):
                parts = [_layer(name, "attn.qkv_proj", f"self_attn.{part}_proj") for part in "qkv"]
            elif name.endswith("mlp.gate_up_proj.weight"):
                parts = [_layer(name, "gate_up_proj", f"{part}_proj") for part in ("gate", "up")]
            else:
                parts = [f"model.{_renamed(name)}"]
            if parts[0] in weights:  # a head that is the embedding may be left out
                found[name] = torch.cat([weights[part] for part in parts])
    if getattr(source.experiment.model, "tie_embeddings", False):
        found[HEAD] = found["embed_tokens.weight"]
    return found


def _renamed(name: str) -> str:
    for ours, theirs in _NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _layer(name: str, ours: str, theirs: str) -> str:
    return "model." + name.replace(ours, theirs)


def own(source: Source) -> Files:
    """With a file of code: the classes of its modules, and in the configuration how they are put together."""
    template = TEMPLATE.read_text(encoding="utf-8")
    sources = Sources(_names(template))
    tree = blueprint(source.model(), sources, "hidden_state")
    del tree["children"]["lm_head"], tree["class"]
    text = template.replace(MARK, sources.text().strip() + "\n").replace(TABLE, sources.table())
    config = {
        "architectures": ["AblateForCausalLM"],
        "model_type": "ablate",
        "auto_map": {auto: f"{Path(CODE).stem}.{name}" for auto, name in AUTO.items()},
        **_common(source),
        "norm": source.experiment.norm.model_dump(mode="json"),
        "modules": tree,
    }
    weights = {name if name == HEAD else f"model.{name}": value for name, value in source.state.items()}
    if config["tie_word_embeddings"]:
        del weights[HEAD]
    return Files(config, weights, "with its own code: trust_remote_code=True", {CODE: text})


def _names(code: str) -> set[str]:
    """What a file defines."""
    return {part.name for part in ast.parse(code).body if isinstance(part, (ast.FunctionDef, ast.ClassDef))}


def _common(source: Source) -> dict[str, Any]:
    """What every language model has."""
    model: Any = source.experiment.model
    classes, (length,) = source.inputs
    return {
        "vocab_size": classes,
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "max_position_embeddings": length,
        "tie_word_embeddings": model.tie_embeddings,
        "torch_dtype": str(next(iter(source.state.values())).dtype).removeprefix("torch."),
        # transformers' LLaMA has others of its own, where nothing is said
        "bos_token_id": None,
        "eos_token_id": tokenizer.end_of_text(source.experiment),
        "pad_token_id": None,
    }
