"""The tokenizer of a run as the library `tokenizers` has it, and its files beside an exported model."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.config.errors import AblateError, DataError
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
"""Texts that a converted tokenizer has to cut as the original does."""


def of(experiment: Experiment) -> Tokenizer:
    """The tokenizer that a run was trained with. Raises DataError where it is not there any more."""
    return load_data_tokenizer(experiment.data, tracking.cache_folder())


def end_of_text(experiment: Experiment) -> int | None:
    """The id that ends a document, if there is one, and the tokenizer is there."""
    try:
        return of(experiment).end_of_text
    except AblateError:
        return None


def backend(tokenizer: Tokenizer) -> tokenizers.Tokenizer | None:
    """One that gives the same ids, and adds no token; None where there is none."""
    return _CONVERSIONS[type(tokenizer)](tokenizer)


def loaded(experiment: Experiment) -> Any:
    """The run's tokenizer as a `transformers` PreTrainedTokenizerFast. Raises DataError where that cannot be."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = of(experiment)
    if (made := backend(tokenizer)) is None:
        raise DataError(f"transformers cannot cut text as the SentencePiece model {_name(experiment)} does.")
    return PreTrainedTokenizerFast(tokenizer_object=made, **settings(tokenizer, made, _length(experiment)))


def _name(experiment: Experiment) -> str:
    return getattr(experiment.data, "tokenizer", "bytes")


def _length(experiment: Experiment) -> int:
    return getattr(experiment.data, "seq_len", 0)


def settings(tokenizer: Tokenizer, made: tokenizers.Tokenizer, length: int) -> dict[str, Any]:
    """What `transformers` is told of it: the end of text, which is padding too, and the model's context."""
    end = None if tokenizer.end_of_text is None else made.id_to_token(tokenizer.end_of_text)
    found: dict[str, Any] = {"padding_side": "left", "clean_up_tokenization_spaces": False, "model_max_length": length}
    return found | ({"eos_token": end, "pad_token": end} if end else {})


def write(experiment: Experiment, folder: Path) -> str:
    """Writes the run's tokenizer so that `AutoTokenizer` finds it, and says in words what came of it. One that is not
    there any more is no reason to keep the weights back."""
    name = _name(experiment)
    try:
        tokenizer = of(experiment)
        if made := backend(tokenizer):
            config = settings(tokenizer, made, _length(experiment))
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
            (folder / "tokenizer.json").write_text(made.to_str(), encoding="utf-8")
            (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            return f"with the tokenizer {name}"
        assert isinstance(tokenizer, SentencePiece)
        (folder / "tokenizer.model").write_bytes(tokenizer.model)
        return f"with the tokenizer {name} as SentencePiece alone"
    except Exception as error:  # whatever disk, network, hub and library raise
        return f"the tokenizer {name} could not be written beside it ({' '.join(str(error).split())})"


def _bytes(_: Any) -> tokenizers.Tokenizer:
    """The bytes as the library writes them: each as a character, which is a token. The zero byte, which text does not
    contain, is the end of text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2's: the others are written as what follows
    hidden = [byte for byte in range(256) if byte not in shown]
    vocabulary = {chr(byte if byte in shown else 256 + hidden.index(byte)): byte for byte in range(1, 256)}
    made = Tokenizer(models.BPE(vocab={END_OF_TEXT[0]: 0, **vocabulary}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def _hugging_face(tokenizer: Any) -> tokenizers.Tokenizer:
    """Its own file, but for what adds tokens to each text."""
    from tokenizers import Tokenizer

    content = json.loads(tokenizer.json)
    content["post_processor"] = None
    return Tokenizer.from_str(json.dumps(content))


def _sentencepiece(tokenizer: Any) -> tokenizers.Tokenizer | None:
    """As `transformers` converts T5's or LLaMA's, if that cuts the probes in the same way."""
    for convert in (_like_t5, _like_llama):
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Exception):  # no transformers, another model
            made = convert(Path(folder) / "tokenizer.model", tokenizer.model)
            ours = [ids.tolist() for ids in tokenizer.encode(list(PROBES))]
            if [made.encode(text, add_special_tokens=False).ids for text in PROBES] == ours:
                return made
    return None


def _like_t5(file: Path, model: bytes) -> tokenizers.Tokenizer:
    made = _converted(file.with_name("spiece.model"), model, {"tokenizer_class": "T5Tokenizer", "extra_ids": 0})
    made.post_processor = None
    return made


def _like_llama(file: Path, model: bytes) -> tokenizers.Tokenizer:
    from tokenizers import normalizers

    made = _converted(file, model, {"tokenizer_class": "LlamaTokenizer"})
    made.post_processor = None
    # its own way of writing spaces swallows one at the start of a text
    made.pre_tokenizer = None
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return made


def _converted(file: Path, model: bytes, config: dict[str, Any]) -> tokenizers.Tokenizer:
    from transformers import AutoTokenizer

    file.write_bytes(model)
    file.with_name("tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return AutoTokenizer.from_pretrained(file.parent).backend_tokenizer


_CONVERSIONS: dict[type, Callable[[Any], tokenizers.Tokenizer | None]] = {
    Bytes: _bytes,
    HuggingFace: _hugging_face,
    SentencePiece: _sentencepiece,
}
