"""Tokenizers by name: bytes, a tokenizer.json, a SentencePiece model, or the name of one on the Hugging Face hub."""

from __future__ import annotations

import hashlib
import importlib
import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ablate.data.files import absolute, reason, suggestion
from ablate.errors import DataError

ACCEPTED = 'Accepted: "bytes", a local tokenizer.json, a local SentencePiece *.model, or the name of a hub repository.'

END_OF_TEXT = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[EOS]", "[SEP]")
"""The tokens that end a document in the tokenizers of GPT-2, LLaMA 1 and 2, LLaMA 3, Gemma, others, and BERT."""


class Tokenizer(Protocol):
    """Turns text into token ids."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def identity(self) -> str:
        """The same for two tokenizers only where they give the same ids."""

    @property
    def end_of_text(self) -> int | None:
        """The id that ends a document; None where the vocabulary has none, and documents follow one another bare."""

    def encode(self, texts: list[str]) -> list[NDArray[Any]]:
        """The ids of each text, one array [tokens] of integers each; no end of text and no other token is added."""


class Bytes:
    """The UTF-8 bytes themselves.

    A document ends with a zero byte: one token, as in the other tokenizers, and one that text does not contain, whereas
    a blank line would look like the end of a paragraph.
    """

    vocab_size = 256
    identity = "bytes"
    end_of_text: int | None = 0

    def encode(self, texts: list[str]) -> list[NDArray[Any]]:
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]


class HuggingFace:
    """A tokenizer of the library `tokenizers`: what a tokenizer.json holds."""

    def __init__(self, tokenizer: Any) -> None:
        # Some files carry the limits of the model that they were made for.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.identity = "tokenizer.json " + hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
        known = (tokenizer.token_to_id(token) for token in END_OF_TEXT)
        self.end_of_text: int | None = next((token for token in known if token is not None), None)

    def encode(self, texts: list[str]) -> list[NDArray[Any]]:
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [np.asarray(encoding.ids, np.uint32) for encoding in encodings]


class SentencePiece:
    """A SentencePiece model."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self.vocab_size = int(processor.get_piece_size())
        self.identity = "sentencepiece " + hashlib.sha256(processor.serialized_model_proto()).hexdigest()
        eos = int(processor.eos_id())
        self.end_of_text: int | None = eos if eos >= 0 else None

    def encode(self, texts: list[str]) -> list[NDArray[Any]]:
        return [np.asarray(ids, np.uint32) for ids in self._processor.encode(texts, out_type=int)]


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer called `name`: "bytes", a path, or the name of a repository on the Hugging Face hub.

    Raises DataError where there is none, it is damaged, or the hub cannot be reached.
    """
    if name == "bytes":
        return Bytes()
    path = absolute(name)
    if os.path.isfile(path / "tokenizer.json"):
        path /= "tokenizer.json"
    if os.path.isfile(path):
        if path.suffix == ".json":
            return _from_json(path)
        if ".model" in path.suffixes:
            return _from_model(path)
        raise DataError(f"{path} is no tokenizer that can be read. {ACCEPTED}")
    if os.path.isdir(path):
        raise DataError(f"The folder {path} has no tokenizer.json. {ACCEPTED}")
    if name.startswith(("/", "./", "../", "~")) or name.count("/") > 1 or path.suffix in (".json", ".model"):
        raise DataError(f"There is no tokenizer {path}.{suggestion(path)} {ACCEPTED}")
    return _from_hub(name)


def _from_json(path: Path) -> Tokenizer:
    library = _library("tokenizers")
    try:
        # Read here and not by the library, whose errors do not tell a missing permission from a damaged file.
        return HuggingFace(library.Tokenizer.from_str(path.read_text(encoding="utf-8")))
    except Exception as error:  # the library raises plain Exception
        raise DataError(f"The tokenizer {path} cannot be read: {reason(error)}") from error


def _from_model(path: Path) -> Tokenizer:
    library = _library("sentencepiece")
    try:
        return SentencePiece(library.SentencePieceProcessor(model_proto=path.read_bytes()))
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"The SentencePiece model {path} cannot be read: {reason(error)}") from error


def _from_hub(name: str) -> Tokenizer:
    library = _library("tokenizers")
    try:
        return HuggingFace(library.Tokenizer.from_pretrained(name))
    except Exception as error:  # whatever the network, the hub and the library raise
        raise DataError(
            f"There is no local file {name!r}, and the Hugging Face hub could not be reached or has no "
            f"tokenizer.json of that name ({reason(error)}). The path of a local tokenizer.json would do. {ACCEPTED}"
        ) from error


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(f"This tokenizer needs the library {name}: pip install {name}") from error
