"""Configurations of transformers: from a model type, a file or a name on the hub, and their fields."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ablate.config.errors import Problem, did_you_mean
from ablate.config.extras import import_library
from ablate.config.hub import TIMEOUT, is_path

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
