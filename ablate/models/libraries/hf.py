"""Causal language models of transformers, built anew from their configuration: from a model type, a file or a name
on the hub."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.config.hub import TIMEOUT, is_path
from ablate.config.lazy import import_library
from ablate.models.by_name import HuggingFace
from ablate.models.head import CrossEntropy
from ablate.models.libraries.base import Blueprint, LibraryModel, find_family
from ablate.models.libraries.wiring import is_matrix
from ablate.norms import Initialization, Placement, Projection, Stack

TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
_TAKEN = {
    *("transformers_version", "architectures", "output_hidden_states", "output_attentions", "return_dict", "dtype"),
    *(
        "torch_dtype",
        "is_encoder_decoder",
        "id2label",
        "label2id",
        "problem_type",
        "use_cache",
        "add_cross_attention",
        "args",
        "kwargs",
        "self",
    ),
}
"""Arguments of a configuration that are no properties of a model trained here."""
_SEES_ALL = {"xlm", "xlnet", "reformer", "prophetnet"}
"""Types whose attention is not, or not by default, causal."""
ENCODERS = {
    *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"),
    *("rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl", "xmod"),
}
"""Types that are causal as decoders alone."""
_SHOWN = 12  # names that a message lists


@functools.cache
def import_transformers() -> Any:
    """Return the library, without its notes. Raises AblateError if it is not there."""
    transformers: Any = import_library("transformers", "hf")
    transformers.logging.set_verbosity_error()
    return transformers


def resolve(source: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]] | Problem:
    """Return the model type and the fields that differ from its defaults, of a type, a mapping with a `model_type`, a
    folder or file with a config.json, or a name on the hub; or the problem with it. Special tokens and the size of a
    vocabulary are left out: they are the data's."""
    if isinstance(source, Mapping):
        kind = source.get("model_type")
        if not isinstance(kind, str):
            return Problem("config", "a mapping needs model_type, such as {model_type: gpt2, n_layer: 2}")
        return kind, {name: value for name, value in source.items() if name != "model_type"}
    types = import_transformers().CONFIG_MAPPING
    path = Path(source).expanduser()
    if source in types:
        return source, {}
    if os.path.exists(path):
        return _read_file(source, path)
    if path.suffix == ".json" or is_path(source):
        return Problem("config", "there is no such folder or file with a config.json", source)
    if "/" not in source:
        return Problem("config", describe_unknown(source), source)
    return _read_hub(source)


def _read_file(source: str, path: Path) -> tuple[str, dict[str, Any]] | Problem:
    if os.path.isdir(path) and not os.path.isfile(path / "config.json"):
        return Problem("config", "there is no config.json in this folder", source)
    try:
        return _list_fields(import_transformers().AutoConfig.from_pretrained(str(path), trust_remote_code=False))
    except Exception as error:  # whatever transformers makes of a file
        return Problem("config", f"cannot be read as a configuration of transformers: {shorten(error)}", source)


def _read_hub(source: str) -> tuple[str, dict[str, Any]] | Problem:
    """Return the configuration of a name on the hub: of its cache, or else of the hub, which has `TIMEOUT` to
    answer."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    auto = import_transformers().AutoConfig
    try:
        with contextlib.suppress(OSError):
            return _list_fields(auto.from_pretrained(source, trust_remote_code=False, local_files_only=True))
        HfApi().model_info(source, timeout=TIMEOUT)
        return _list_fields(auto.from_pretrained(source, trust_remote_code=False))
    except RepositoryNotFoundError:
        text = "there is no such model on the Hugging Face hub, or it is private"
    except Exception as error:  # of the network, the hub and transformers
        text = f"is not in the cache of the Hugging Face hub, which cannot be reached now ({shorten(error)})"
    text += ". A downloaded folder or config.json also works, and so does a model type such as llama"
    return Problem("config", text, source)


def _list_fields(config: Any) -> tuple[str, dict[str, Any]]:
    """Return the type of a configuration, and its fields that are not the defaults."""
    cls, own = type(config), {name for name in list_arguments(type(config)) if name not in ("vocab_size", *TOKENS)}
    plain = cls().to_dict()
    fields = {name: value for name, value in config.to_dict().items() if name in own and value != plain.get(name)}
    whole = cls(**fields).to_dict()
    for name in list(fields):  # what follows from the others, such as the type of each layer, is not a choice
        rest = {other: value for other, value in fields.items() if other != name}
        with contextlib.suppress(Exception):
            fields = rest if cls(**rest).to_dict() == whole else fields
    return config.model_type, fields


def list_arguments(cls: type[Any]) -> list[str]:
    """Return the fields of a configuration class that can be given."""
    return [name for name in inspect.signature(cls.__init__).parameters if name not in _TAKEN]


def list_causal() -> list[str]:
    """Return the types with a causal language model."""
    import_transformers()
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in _SEES_ALL]


def describe_unknown(name: str) -> str:
    """Return the problem of an unknown type."""
    known = list_causal()
    return (
        "transformers has no causal language model of this type. Accepted: a type such as gpt2, llama, qwen3 or "
        f"mistral, a folder or file with a config.json, or a name on the hub.{did_you_mean(name, known)}"
    )


def explain_field(cls: type[Any], known: Iterable[str], name: str, value: Any) -> Problem:
    """Return the problem of a field that the configuration does not have."""
    known, alias = list(known), getattr(cls, "attribute_map", {}).get(name)
    hint = f" Did you mean {alias}?" if alias in known else did_you_mean(name, known)
    listed = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
    taken = " (Ablate sets it)" if name in _TAKEN else ""
    return Problem(name, f"{cls.__name__} has no such field{taken}. Accepted: {listed}.{hint}", value)


def shorten(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines)[:200].rstrip(".")


__all__ = ["HFModel", "build", "find_problems", "measure_attention", "open_blueprint", "resolve"]

ATTENTION = "ablate_causal"
"""The name under which transformers knows `attend`."""


def attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None, **more: Any) -> Any:
    """Return transformers' own attention, causal, without a mask: under this name it makes none, since it would look at
    values to see whether it needs one, which waits for a GPU and cannot be planned."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward(module, q, k, v, None, **more)


@functools.cache
def find_problems(config: HuggingFace) -> list[Problem]:
    """Return the problems that keep transformers from building the model."""
    transformers, kind, options = import_transformers(), config.config, config.options
    if kind not in list_causal() or kind not in transformers.CONFIG_MAPPING:
        return [Problem("config", describe_unknown(kind), kind)]
    cls = transformers.CONFIG_MAPPING[kind]
    known = list_arguments(cls)
    problems = [explain_field(cls, known, name, value) for name, value in options.items() if name not in known]
    if problems:
        return problems
    if kind in ENCODERS and not options.get("is_decoder", False):
        text = f"{kind} sees the tokens that it is to predict unless it is a decoder. Accepted: is_decoder=true"
        return [Problem("is_decoder", text, options.get("is_decoder"))]
    try:
        open_blueprint(config)
    except ConfigError as error:
        return list(error.problems)
    return []


def _create(config: HuggingFace, classes: int | None = None) -> Any:
    """Return transformers' model, with its initial weights, for a vocabulary of `classes`. Raises ConfigError."""
    transformers, given = import_transformers(), dict(config.options)
    known = list_arguments(transformers.CONFIG_MAPPING[config.config])
    if classes is not None:
        given["vocab_size"] = config.vocabulary(classes)
    fields = {**dict.fromkeys((name for name in TOKENS if name in known), None), "use_cache": False, **given}
    try:
        own = transformers.AutoConfig.for_model(config.config, **fields)
        net = transformers.AutoModelForCausalLM.from_config(own)
        if find_family(net) is not None:  # whose attention is causal over all earlier tokens
            import_transformers().AttentionInterface.register(ATTENTION, attend)
            net.set_attn_implementation(ATTENTION)
        return net
    except (MemoryError, ConfigError):
        raise
    except Exception as error:  # of transformers, for values that do not go together
        text = shorten(error)
        named = re.search(r"field '(\w+)'", text)
        path = named[1] if named and named[1] in given else "config"
        raise ConfigError(
            [Problem(path, f"transformers cannot build this {config.config}: {text}", given.get(path))]
        ) from None


def _find_layers(net: Any, kind: str) -> str:
    """Return the container of the layers: where the table says, or the one list of as many modules of one class as the
    configuration has layers. Raises ConfigError."""
    if family := find_family(net):
        return family.blocks
    depth = _read(net.config.get_text_config(), "num_hidden_layers")
    lists = {name: list(module.children()) for name, module in net.named_modules() if isinstance(module, nn.ModuleList)}
    found = [name for name, layers in lists.items() if len(layers) == depth and len(set(map(type, layers))) == 1]
    whole = set(net._no_split_modules or ())  # classes that transformers itself takes for layers
    found = [name for name in found if type(lists[name][0]).__name__ in whole] or found
    if len(found) == 1:
        return found[0]
    text = f"the layers of {type(net).__name__} cannot be identified among its modules, so it cannot be trained here"
    raise ConfigError([Problem("config", text, kind)])


def _read(own: Any, name: str) -> Any:
    """Return an attribute of a configuration; None if it has none, or one for each layer."""
    with contextlib.suppress(Exception):
        return getattr(own, name)
    return None


@functools.lru_cache(maxsize=64)
def _open(key: str) -> Blueprint:
    config = HuggingFace.model_construct(**json.loads(key))
    with torch.device("meta"):
        net = _create(config)
    own, path = net.config.get_text_config(), _find_layers(net, config.config)
    layers = net.get_submodule(path)
    if experts := [name for name, p in layers.named_parameters() if p.ndim > 2 and not name.endswith(".weight")]:
        where = experts[0].rpartition(".")[0]
        text = (
            f"{type(net).__name__} has weights beside its matrices ({where}), as of experts: how often a token uses "
            "them is not known, and neither are the FLOPs of a run. Accepted: dense models"
        )
        raise ConfigError([Problem("config", text, config.config)])
    family, heads = find_family(net), int(_read(own, "num_attention_heads") or 0)
    kv_heads = int(_read(own, "num_key_value_heads") or heads)
    dim = int(_read(own, "head_dim") or (own.hidden_size // heads if heads else 0))
    mlp = next((m for name, m in layers[0].named_modules() if family and family.roles.get(name) == "down"), None)
    width = (mlp.weight.shape[0] if type(mlp).__name__ == "Conv1D" else mlp.weight.shape[1]) if mlp is not None else 0
    output = net.get_output_embeddings()
    name = next(name for name, module in net.named_modules() if module is output)
    tied = _find_tied(net)
    stack = Stack(len(layers), own.hidden_size, int(width), heads, kv_heads, dim, causal=True, token_embedding=not tied)
    return Blueprint(net, stack, path, f"net.{name}.weight", family, tied)


def open_blueprint(config: HuggingFace) -> Blueprint:
    """Return the model without weights. Raises ConfigError."""
    return _open(config.model_dump_json())


def _find_tied(net: nn.Module) -> dict[str, str]:
    """Return the tied weights of a model, by their names in ours."""
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied[f"net.{name}"] = f"net.{first[id(parameter)]}"
        first.setdefault(id(parameter), name)
    return tied


def _find_window(own: Any) -> int | None:
    """Return the length of the window that the attention of some layers sees; None if all see all earlier tokens."""
    if not getattr(own, "use_sliding_window", True):
        return None
    return getattr(own, "sliding_window", None)


def build(config: HuggingFace, norm: Placement, init: Initialization, classes: int, shape: tuple[int, ...]) -> HFModel:
    """Return the initialised model for sequences of `shape`. Raises ConfigError."""
    (length,) = shape
    return HFModel(config, norm, init, classes, length)


class HFModel(LibraryModel):
    """Token ids [batch, seq] -> logits [batch, seq, vocabulary]; with targets [batch, seq] their cross-entropy in nats,
    float32: the sum over all targets but padding, divided by the number of positions."""

    def __init__(self, config: HuggingFace, norm: Placement, init: Initialization, classes: int, length: int) -> None:
        net = _create(config, classes)
        _check_length(config, net.config.get_text_config(), length)
        plan = config.blueprint
        self._is_known = plan.family is not None
        self._window = _find_window(net.config.get_text_config()) if self._is_known else None
        super().__init__(config, net, norm, init, (), [plan.output.split(".")[1]])
        self.criterion = CrossEntropy()
        self._has_plain_head = plan.family is not None and plan.family.plain_head and net.lm_head.bias is None

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        net: Any = self.net
        if tokens.is_meta and not self._is_known:
            text = (
                f"transformers looks at values to compute {self.config.title}, so a step without them cannot be planned"
            )
            raise ConfigError([Problem("model", text)])
        if self._window and tokens.shape[1] > self._window:
            raise ConfigError([_explain_window(self.config.title, self._window, tokens.shape[1])])
        if targets is not None and self._has_plain_head and isinstance(net.lm_head, nn.Linear):
            x = net.base_model(input_ids=tokens, use_cache=False).last_hidden_state
            return self.criterion(x, net.lm_head.weight, targets)
        logits: Tensor = net(input_ids=tokens, use_cache=False).logits
        if targets is None:
            return logits
        total = F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), reduction="sum")
        return total / targets.numel()

    def projections(self) -> Iterator[Projection]:
        net: Any = self.net
        yield Projection("embedding", None, net.get_input_embeddings().weight)
        yield from super().projections()
        if not self.config.tied_weights():
            yield Projection("head", None, net.get_output_embeddings().weight)

    def heads(self) -> Iterable[nn.Module]:
        return [self.criterion] if self._has_plain_head else ()


def _check_length(config: HuggingFace, own: Any, length: int) -> None:
    """Raise ConfigError if the model cannot take sequences of this length as it is."""
    positions = getattr(own, "max_position_embeddings", None)
    problems = []
    if positions and length > positions:
        name = getattr(own, "attribute_map", {}).get("max_position_embeddings", "max_position_embeddings")
        text = f"{config.title} has {positions} positions, and data.seq_len is {length}. Accepted: at least {length}"
        problems.append(Problem(f"model.{name}", text, positions))
    window = _find_window(own)
    if config.blueprint.family is not None and window and length > window:
        problems.append(_explain_window(config.title, window, length))
    if problems:
        raise ConfigError(problems)


def _explain_window(title: str, window: int, length: int) -> Problem:
    text = (
        f"{title} attends to {window} tokens, and a sequence has {length}: a window is not built here. "
        "Accepted: null, or a shorter data.seq_len"
    )
    return Problem("model.sliding_window", text, window)


def measure_attention(config: HuggingFace, shape: tuple[int, ...]) -> float:
    """Return the FLOPs of the products of activations for one token, of which a causal model needs half. Raises
    ConfigError if the model cannot be traced without values."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode():
            net = _create(config)
            with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                net(input_ids=torch.zeros((1, *shape), dtype=torch.int64), use_cache=False)
    except Exception as error:
        text = f"the FLOPs of {config.title} cannot be counted: {shorten(error)}"
        raise ConfigError([Problem("model", text)]) from None
    matrices = sum(m.weight.numel() for m in net.modules() if is_matrix(m))
    return max(0.0, counter.get_total_flops() / shape[0] - 2 * matrices) / 2
