"""A language model in the format of `transformers`: as one of its architectures if it is equal to one, otherwise as a
class of our own that `transformers` finds by a file beside the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from ablate.norms import Stack
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
    fused: Mapping[str, Sequence[str]] = field(default_factory=lambda: _FUSED)
    """Our names of fused matrices -> theirs of the parts."""
    interleaved: bool = False
    """Whether its rotary embedding turns neighbouring features together, ours those of the two halves of a head."""
    needs_equal_width: bool = False
    """Whether its heads must be as wide together as the hidden state."""
    by_layer: Mapping[str, Any] = field(default_factory=dict)
    """Further fields, with the value of each layer."""
    eps: str = "rms_norm_eps"
    """The name of the epsilon of its norms."""

    def rename(self, name: str) -> list[str]:
        """Return the names there of the weight `name` here: for a fused matrix those of its parts."""
        if name == HEAD:
            return [HEAD]
        for ours, parts in self.fused.items():
            if ours in name:
                return [f"model.{name.replace(ours, part)}" for part in parts]
        for ours, theirs in {"attn.o_proj": "self_attn.o_proj", **self.norms}.items():
            name = name.replace(ours, theirs)
        return [f"model.{name}"]

    def split(self, name: str, value: Tensor, stack: Stack) -> dict[str, Tensor]:
        """Return the tensors there, by name, of the weight `name` here."""
        names = self.rename(name)
        if len(names) < 3:
            return dict(zip(names, value.chunk(len(names)), strict=True))
        parts = value.split([heads * stack.head_dim for heads in (stack.heads, stack.kv_heads, stack.kv_heads)])
        pairs = (2, stack.head_dim // 2) if self.interleaved else (1, stack.head_dim)
        return dict(zip(names, (*(_turn(part, pairs) for part in parts[:2]), parts[2]), strict=True))

    def join(self, name: str, weights: Mapping[str, Tensor], stack: Stack) -> Tensor:
        """Return the weight `name` here, of the tensors there by name."""
        parts = [weights[theirs] for theirs in self.rename(name)]
        if self.interleaved and len(parts) == 3:
            parts[:2] = (_turn(part, (stack.head_dim // 2, 2)) for part in parts[:2])
        return torch.cat(parts)


def _turn(rows: Tensor, pairs: tuple[int, int]) -> Tensor:
    """Return the rows of each head, in a grid of two sizes, in the order of its columns."""
    return rows.unflatten(0, (-1, *pairs)).transpose(1, 2).flatten(0, 2)


_PRE = {"attn_residual.norm": "input_layernorm", "mlp_residual.norm": "post_attention_layernorm"}
_BOTH = {
    "attn_residual.before": "input_layernorm",
    "attn_residual.after": "post_self_attn_layernorm",
    "mlp_residual.before": "post_attention_layernorm",
    "mlp_residual.after": "post_mlp_layernorm",
}
_OUTPUT = {"attn_residual.norm": "post_attention_layernorm", "mlp_residual.norm": "post_feedforward_layernorm"}
_QK = {"attn.qkv_norm.q": "self_attn.q_norm", "attn.qkv_norm.k": "self_attn.k_norm"}
_WHOLE = {"partial_rotary_factor": 1.0}
_GLM4 = Architecture(
    "Glm4ForCausalLM", "glm4", _BOTH, _WHOLE, {"attn.qkv_proj": _FUSED["attn.qkv_proj"]}, interleaved=True
)
# Of those that transformers has with a head of scores too, which a reward model needs (Granite and BitNet have none).
_ARCHITECTURES = {  # placement, norm layer, and the range of the QK-norm, None without one
    ("pre", "rmsnorm", None): Architecture("LlamaForCausalLM", "llama", _PRE, {"mlp_bias": False}),
    ("pre", "rmsnorm", "head"): Architecture("Qwen3ForCausalLM", "qwen3", _PRE | _QK, {"use_sliding_window": False}),
    ("pre", "layernorm", None): Architecture(
        "StableLmForCausalLM", "stablelm", _PRE, _WHOLE, needs_equal_width=True, eps="layer_norm_eps"
    ),
    ("olmo2", "rmsnorm", "width"): Architecture("Olmo2ForCausalLM", "olmo2", _OUTPUT | _QK),
    ("olmo2", "rmsnorm", "head"): Architecture(
        "Exaone4ForCausalLM",
        "exaone4",
        _OUTPUT | _QK,
        {"sliding_window": None},
        by_layer={"layer_types": "full_attention"},
    ),
    ("sandwich", "rmsnorm", None): _GLM4,
    ("sandwich_scaled", "rmsnorm", None): _GLM4,  # gains only start elsewhere
}


def find_architecture(experiment: Experiment) -> Architecture | None:
    """Return the architecture of `transformers` that the model is, whatever its name here; None if there is none."""
    norm, model = experiment.norm, experiment.model
    assert isinstance(model, Llama)
    qk_norm, stack = norm.qk if norm.has_qk_norm else norm.layer, model.stack()
    if (
        model.sublayers != "both"
        or not model.layers
        or not norm.final_norm
        or model.attention.after_training.find_set()
    ):
        return None
    if experiment.init.embedding_multiplier(stack) != 1 or experiment.multipliers != Multipliers():
        return None
    if qk_norm != norm.layer or not getattr(norm.layer, "bias", True):  # theirs have one epsilon
        return None
    found = _ARCHITECTURES.get((norm.kind, norm.layer.kind, norm.qk_over if norm.has_qk_norm else None))
    narrow = stack.heads * stack.head_dim != stack.hidden
    return None if found and found.needs_equal_width and narrow else found


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
    weights: dict[str, Tensor] = {}
    for name, value in source.state.items():
        if name == HEAD and model.tie_embeddings:
            continue
        parts = architecture.split(name, value, stack)
        weights |= {theirs: part.clone() for theirs, part in parts.items()} if len(parts) > 1 else parts
    eps: float = getattr(source.experiment.norm.layer, "eps")  # noqa: B009 - a field of the layers that are known here
    fields = {"intermediate_size": model.mlp, "num_key_value_heads": stack.kv_heads, architecture.eps: eps}
    fields |= {"head_dim": stack.head_dim, "rope_theta": model.rope_base, "hidden_act": "silu", "attention_bias": False}
    fields |= {name: [value] * model.layers for name, value in architecture.by_layer.items()}
    config = {"architectures": [architecture.cls], "model_type": architecture.model_type, **_common_fields(source)}
    return Files({**config, **fields, **architecture.fields}, weights, f"{architecture.cls} of transformers")


def restore_weights(source: TrainedModel, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights that `transformers` trained from `build_files(source)`, with Ablate's names."""
    architecture = find_architecture(source.experiment)
    if architecture is None:
        state = {name.removeprefix(_PREFIX): value for name, value in weights.items()}
    else:
        stack, state = source.experiment.model.stack(), {}
        for name in source.state:
            if architecture.rename(name)[0] in weights:  # a head that is the embedding may be left out
                state[name] = architecture.join(name, weights, stack)
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
