"""Loading what transformers saved: errors in words, and the tokenizer of a model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.config.errors import AblateError
from ablate.config.extras import import_library
from ablate.config.logs import silence
from ablate.data.files import identify_files
from ablate.data.text.tokenizers import keep_tokenizer
from ablate.training.checkpoints import hash_weights

_VOCABULARIES = ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")


def import_transformers() -> Any:
    """Return transformers, which prints nothing. Raises AblateError without the extra `hf`."""
    transformers: Any = import_library("transformers", "hf")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


@contextlib.contextmanager
def translate_errors(name: str) -> Iterator[None]:
    """Raise AblateError, which says what to do, for errors of transformers and the hub, whose own lines are not
    shown."""
    try:
        with silence("huggingface_hub"):
            yield
    except (MemoryError, AblateError):
        raise
    except Exception as error:  # whatever transformers, tokenizers, safetensors, the disk and the hub raise
        message = " ".join(str(error).split())
        hint = " Add --trust-remote-code if you trust it." if "trust_remote_code" in message else ""
        raise AblateError(f"The model hf:{name} cannot be loaded: {message[:400].rstrip('.')}.{hint}") from None


def identify_model(name: str, model: Any) -> str:
    """Return a text that is equal for two models of this name only if they are equal: of a folder its files, of the hub
    the commit of its repository, or its weights where that is not known."""
    if os.path.isdir(Path(name).expanduser()):
        return identify_files(name)
    hub = import_transformers().utils.hub
    with translate_errors(name):
        commit = hub.extract_commit_hash(hub.cached_file(name, "config.json"), None)
    return f"{name} {commit or hash_weights(model.state_dict())}"


def find_tokenizer(name: str) -> str | None:
    """Return the value of `data.tokenizer` for the model's own tokenizer; None if its folder has none."""
    folder = Path(name).expanduser()
    if not os.path.isdir(folder):
        return name
    for known in ("tokenizer.json", "tokenizer.model"):
        if os.path.isfile(folder / known):
            return str(folder / known)
    if not any(os.path.isfile(folder / known) for known in _VOCABULARIES):
        return None
    with translate_errors(name):  # an older form, which transformers turns into a tokenizer.json
        text = (
            import_transformers()
            .AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            .backend_tokenizer.to_str()
        )
    return str(keep_tokenizer(text, tracking.cache_folder()))
