"""A language model in the format of `transformers`: as one of its architectures if it is equal to one, otherwise as a
class of our own that `transformers` finds by a file beside the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate.addons.export import tokenizer
from ablate.config.errors import AblateError
from ablate.experiment.tree import Experiment
from ablate.models.llama_config import Llama
from ablate.models.vit_config import ViT
from ablate.norms.layers import RMSNorm
from ablate.optim.parametrizations import Multipliers
from ablate.training.trained import TrainedModel

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
        """Return the names there of the weight `name` here: for a fused matrix those of its parts."""
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
_ARCHITECTURES = {  # placement and the range of the QK-norm, None without one
    ("pre", None): Architecture("LlamaForCausalLM", "llama", _PRE, {"mlp_bias": False}),
    ("pre", "head"): Architecture("Qwen3ForCausalLM", "qwen3", _PRE | _QK, {"use_sliding_window": False}),
    ("olmo2", "width"): Architecture("Olmo2ForCausalLM", "olmo2", _OUTPUT | _QK),
}


def find_architecture(experiment: Experiment) -> Architecture | None:
    """Return the architecture of `transformers` that the model is, whatever its name here; None if there is none."""
    norm, model = experiment.norm, experiment.model
    assert isinstance(model, Llama)
    qk_norm = norm.qk if norm.has_qk_norm else norm.layer
    if model.sublayers != "both" or not model.layers or not norm.final_norm or model.attention.after_training.find_set():
        return None
    if experiment.init.embedding_multiplier(model.stack()) != 1 or experiment.multipliers != Multipliers():
        return None
    if not isinstance(norm.layer, RMSNorm) or qk_norm != norm.layer:  # theirs have one epsilon
        return None
    return _ARCHITECTURES.get((norm.kind, norm.qk_over if norm.has_qk_norm else None))


CODE = "modeling_ablate.py"
FOR_ALL = ("consolidated", "safetensors")
_PREFIX = "model.net."  # of our model's weights in that file's classes
AUTO = {
    "AutoConfig": "AblateConfig",
    "AutoModel": "AblateModel",
    "AutoModelForCausalLM": "AblateForCausalLM",
    "AutoModelForSequenceClassification": "AblateForSequenceClassification",
}

_BUILDING = ("plugins", "model", "norm", "init", "parametrization")
"""The parts of an experiment that make its model."""


@dataclass(frozen=True)
class Files:
    """The files of an exported folder."""

    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    words: str
    texts: Mapping[str, str] = field(default_factory=dict)
    """File name -> content."""


def build_files(source: TrainedModel) -> Files:
    """Return the files of an architecture of `transformers` if the model is one, otherwise those of our own class.

    Raises AblateError for a model that is not a language model, or that computes a tensor which no checkpoint has.
    """
    if source.experiment.model.kind == "hf":
        return convert_library(source)
    if not isinstance(source.experiment.model, Llama):
        title, is_vit = source.experiment.model.title, isinstance(source.experiment.model, ViT)
        accepted = f"{'timm, ' if is_vit else ''}{', '.join(FOR_ALL)}"
        raise AblateError(f"hf is for LLaMA models, and this model is a {title}. Accepted for it: {accepted}.")
    architecture = find_architecture(source.experiment)
    return convert_to_native(source, architecture) if architecture else describe_own(source)


def convert_library(source: TrainedModel) -> Files:
    """Return the files of a model of transformers by name. Raises AblateError if its norms are not its own."""
    norm, config = source.experiment.norm, source.experiment.model
    if not (norm.of_library and norm.layer.of_library):
        raise AblateError(
            f"{config.title} with norm={norm.kind} norm.layer={norm.layer.kind} is no model of transformers: only with "
            f"norms of its own (norm=library norm.layer=library) it is. Accepted for it: {', '.join(FOR_ALL)}."
        )
    net: Any = source.blank().net
    fields = {**net.config.to_dict(), "architectures": [type(net).__name__], "use_cache": True}
    weights = {name.removeprefix("net."): weight for name, weight in source.state.items()}
    return Files(fields, weights, f"{type(net).__name__} of transformers")


def convert_to_native(source: TrainedModel, architecture: Architecture) -> Files:
    """Return the model as an architecture of `transformers`: with its names, and fused matrices split."""
    model: Any = source.experiment.model
    stack = model.stack()
    sizes = [heads * stack.head_dim for heads in (stack.heads, stack.kv_heads, stack.kv_heads)]
    weights: dict[str, Tensor] = {}
    for name, value in source.state.items():
        names = architecture.rename(name)
        if name == HEAD and model.tie_embeddings:
            continue
        parts = value.split(sizes) if len(names) == 3 else value.chunk(len(names))
        weights |= {theirs: part.clone() if len(names) > 1 else part for theirs, part in zip(names, parts, strict=True)}
    eps: float = getattr(source.experiment.norm.layer, "eps")  # noqa: B009 - a field of RMSNorm
    fields = {"intermediate_size": model.mlp, "num_key_value_heads": stack.kv_heads, "rms_norm_eps": eps}
    fields |= {"head_dim": stack.head_dim, "rope_theta": model.rope_base, "hidden_act": "silu", "attention_bias": False}
    config = {"architectures": [architecture.cls], "model_type": architecture.model_type, **_common_fields(source)}
    return Files({**config, **fields, **architecture.fields}, weights, f"{architecture.cls} of transformers")


def restore_weights(source: TrainedModel, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights that `transformers` trained from `build_files(source)`, with Ablate's names."""
    architecture = find_architecture(source.experiment)
    if architecture is None:
        state = {name.removeprefix(_PREFIX): value for name, value in weights.items()}
    else:
        state = {}
        for name in source.state:
            parts = architecture.rename(name)
            if parts[0] in weights:  # a head that is the embedding may be left out
                state[name] = torch.cat([weights[part] for part in parts])
    for name, other in source.experiment.model.tied_weights().items():
        state[name] = state[other]
    return state


def describe_own(source: TrainedModel) -> Files:
    """Return the files of a model that transformers does not have: its experiment, and the code that builds it."""
    model: Any = source.experiment.model
    model = model.model_copy(update={"attention": model.attention.after_training})
    source = replace(source, experiment=source.experiment.model_copy(update={"model": model}))
    for module in source.blank().modules():  # transformers builds without values, and fills in what the files have
        tensors = [name for name, value in vars(module).items() if isinstance(value, Tensor)]
        if computed := sorted({*tensors, *module._non_persistent_buffers_set}):
            text = f"{type(module).__name__} computes {', '.join(computed)}, which no checkpoint has"
            raise AblateError(f"{text}; it cannot be exported for transformers. Accepted: {', '.join(FOR_ALL)}.")
    tree = source.experiment.to_tree()
    config = {
        "architectures": ["AblateForCausalLM"],
        "model_type": "ablate",
        "auto_map": {auto: f"{Path(CODE).stem}.{name}" for auto, name in AUTO.items()},
        **_common_fields(source),
        "experiment": {name: tree[name] for name in _BUILDING if name in tree},
    }
    weights = {name if name == HEAD else f"{_PREFIX}{name}": value for name, value in source.state.items()}
    if config["tie_word_embeddings"]:
        del weights[HEAD]
    code = Path(__file__).with_name(CODE).read_text(encoding="utf-8")
    return Files(config, weights, "built by Ablate: trust_remote_code=True", {CODE: code})


def _common_fields(source: TrainedModel) -> dict[str, Any]:
    """Return the configuration that every language model has."""
    model: Any = source.experiment.model
    classes, (length,) = source.inputs
    return {
        "vocab_size": classes,
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        **({"max_position_embeddings": length} if length else {}),  # else as transformers has it
        "tie_word_embeddings": model.tie_embeddings,
        "torch_dtype": str(next(iter(source.state.values())).dtype).removeprefix("torch."),
        # transformers' LLaMA has others of its own, where nothing is said
        "bos_token_id": None,
        "eos_token_id": tokenizer.find_end_of_text(source.experiment),
        "pad_token_id": None,
    }
