"""The tokenizer of a run in the format of the library `tokenizers`, and its files next to an exported model."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.config.errors import AblateError
from ablate.data.text.tokenizers import END_OF_TEXT, Bytes, HuggingFace, SentencePiece, Tokenizer, load_data_tokenizer
from ablate.experiment.tree import Experiment

if TYPE_CHECKING:
    import tokenizers

PROBES = (
    "Question: which one? Answer: the second, 42.",
    " a leading space,  two spaces\tand a tab",
    "First line\n\nthird line ",
    "naïve façade, 東京, Ελλάδα, 😀",
    "def f(x):\n    return x ** 2  # code",
)
"""Texts on which a converted tokenizer must agree with the original."""


def load_own(experiment: Experiment) -> Tokenizer:
    """Return the tokenizer that a run was trained with. Raises DataError if it no longer exists."""
    return load_data_tokenizer(experiment.data, tracking.cache_folder())


def find_end_of_text(experiment: Experiment) -> int | None:
    """Return the id that ends a document; None if there is none or the tokenizer no longer exists."""
    try:
        return load_own(experiment).end_of_text
    except AblateError:
        return None


def convert(tokenizer: Tokenizer) -> tokenizers.Tokenizer | None:
    """Return a tokenizer of `tokenizers` that returns the same ids and adds no token; None if there is none."""
    return _CONVERSIONS[type(tokenizer)](tokenizer)


def _build_settings(tokenizer: Tokenizer, converted: tokenizers.Tokenizer, length: int) -> dict[str, Any]:
    """Return its settings for `transformers`: the end of text, which is also the padding, and the model's context."""
    end = None if tokenizer.end_of_text is None else converted.id_to_token(tokenizer.end_of_text)
    settings = {"padding_side": "left", "clean_up_tokenization_spaces": False, "model_max_length": length}
    return settings | ({"eos_token": end, "pad_token": end} if end else {})


def write_tokenizer(experiment: Experiment, folder: Path) -> str:
    """Write the run's tokenizer so that `AutoTokenizer` finds it; return a clause on it. If the tokenizer no longer
    exists, only the weights are exported."""
    name = getattr(experiment.data, "tokenizer", "bytes")
    if name is None:  # of token files
        return "without the tokenizer, which data.tokenizer did not name"
    try:
        tokenizer = load_own(experiment)
        if converted := convert(tokenizer):
            config = _build_settings(tokenizer, converted, getattr(experiment.data, "seq_len", 0))
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
            (folder / "tokenizer.json").write_text(converted.to_str(), encoding="utf-8")
            (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            return f"with the tokenizer {name}"
        assert isinstance(tokenizer, SentencePiece)
        (folder / "tokenizer.model").write_bytes(tokenizer.model)
        return f"with the tokenizer {name} as SentencePiece only"
    except Exception as error:  # whatever disk, network, hub and library raise
        return f"the tokenizer {name} could not be written ({' '.join(str(error).split())})"


def _convert_bytes(_: Any) -> tokenizers.Tokenizer:
    """Return the bytes, each as a character that is a token. The zero byte, which text does not contain, is the end of
    text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2's: the others are written as what follows
    hidden = [byte for byte in range(256) if byte not in shown]
    vocabulary = {chr(byte if byte in shown else 256 + hidden.index(byte)): byte for byte in range(1, 256)}
    converted = Tokenizer(models.BPE(vocab={END_OF_TEXT[0]: 0, **vocabulary}, merges=[]))
    converted.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    converted.decoder = decoders.ByteLevel()
    return converted


def _convert_hugging_face(tokenizer: Any) -> tokenizers.Tokenizer:
    """Return the tokenizer of its own file without what adds tokens to each text."""
    from tokenizers import Tokenizer

    content = json.loads(tokenizer.json)
    content["post_processor"] = None
    return Tokenizer.from_str(json.dumps(content))


def _convert_sentencepiece(tokenizer: Any) -> tokenizers.Tokenizer | None:
    """Return it as `transformers` converts T5's or LLaMA's, if that agrees on the probes."""
    for convert_like in (_convert_like_t5, _convert_like_llama):
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Exception):  # no transformers, another model
            converted = convert_like(Path(folder), tokenizer.model)
            ours = [ids.tolist() for ids in tokenizer.encode(list(PROBES))]
            if [converted.encode(text, add_special_tokens=False).ids for text in PROBES] == ours:
                return converted
    return None


def _convert_like_t5(folder: Path, model: bytes) -> tokenizers.Tokenizer:
    return _convert_file(folder / "spiece.model", model, {"tokenizer_class": "T5Tokenizer", "extra_ids": 0})


def _convert_like_llama(folder: Path, model: bytes) -> tokenizers.Tokenizer:
    from tokenizers import normalizers

    converted = _convert_file(folder / "tokenizer.model", model, {"tokenizer_class": "LlamaTokenizer"})
    # its own way of writing spaces swallows one at the start of a text
    converted.pre_tokenizer = None
    converted.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return converted


def _convert_file(file: Path, model: bytes, config: dict[str, Any]) -> tokenizers.Tokenizer:
    from transformers import AutoTokenizer

    file.write_bytes(model)
    file.with_name("tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    converted = AutoTokenizer.from_pretrained(file.parent, trust_remote_code=False).backend_tokenizer
    converted.post_processor = None
    return converted


_CONVERSIONS: dict[type, Callable[[Any], tokenizers.Tokenizer | None]] = {
    Bytes: _convert_bytes,
    HuggingFace: _convert_hugging_face,
    SentencePiece: _convert_sentencepiece,
}
