"""Tokenizers by name: bytes, a tokenizer.json, a SentencePiece model, or the name of one on the Hugging Face hub.

Training a tokenizer on the corpus is in `ablate.data.text.bpe`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ablate.config.bounds import MOST_VOCABULARY
from ablate.config.errors import DataError
from ablate.config.hub import TIMEOUT, is_path
from ablate.config.lazy import torch
from ablate.data.files import expand_path, explain, hold_lock, read_stamps, suggest_name, write_whole

ACCEPTED = (
    'Accepted: "bytes", bpe-N (trained on the corpus), a local tokenizer.json, a local SentencePiece *.model, or the '
    "name of a hub repository."
)
END_OF_TEXT = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[EOS]", "[SEP]")
"""The tokens that end a document in the tokenizers of GPT-2, LLaMA 1 and 2, LLaMA 3, Gemma, others, and BERT, looked
for if no file beside the tokenizer names the token."""
NO_END = "none"
"""The setting `end_of_text` of documents that are concatenated without a token between them."""
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
"""Files of transformers beside a tokenizer, which name its end of text as `eos_token`."""


KNOWN_SIZES = {"bytes": 256, "gpt2": 50_257, "t5-base": 32_000, "allenai/gpt-neox-olmo-dolma-v1_5": 50_280}
"""Sizes of known vocabularies, so that a plan does not load them."""


class Tokenizer(Protocol):
    """Turns text into token ids."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def identity(self) -> str:
        """Equal for two tokenizers only if they produce the same ids."""

    @property
    def end_of_text(self) -> int | None:
        """The id that ends a document; None if there is none, or none is known."""

    def encode(self, texts: list[str]) -> list[NDArray[Any]]:
        """Return the ids of each text, one array [tokens] of integers each; no end of text and no other token is
        added."""


class Bytes:
    """The UTF-8 bytes themselves.

    A document ends with a zero byte: one token, as in the other tokenizers, that does not occur in text, whereas a
    blank line would look like the end of a paragraph. Raises DataError for another `end`.
    """

    vocab_size = 256

    def __init__(self, end: str | None = None) -> None:
        if end not in (None, NO_END):
            raise DataError(f"data.end_of_text is {end!r}, and bytes end a document with a zero byte: omit it.")
        self.end_of_text: int | None = 0 if end is None else None
        self.identity = "bytes" if end is None else "bytes without an end of text"

    def encode(self, texts: list[str]) -> list[NDArray[Any]]:
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]


_prepared = False


def prepare_threads() -> None:
    """Prepare the threads of `tokenizers` before its first use: they do not survive a fork, and a child would wait for
    them forever."""
    global _prepared
    if not _prepared:
        _prepared = True
        # The library counts threads once, when it first computes; and it would ask about them at every fork.
        os.environ.setdefault("RAYON_NUM_THREADS", str(torch.get_num_threads()))
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))


class HuggingFace:
    """A tokenizer of the library `tokenizers`, from a tokenizer.json. Special tokens that occur in a text are encoded
    as text. Special tokens at the end of the vocabulary, such as the hundred sentinels of T5, are therefore never
    produced and not counted: t5-base has 32 000 tokens, like its SentencePiece model.

    Args:
        tokenizer_json: the content of the file.
        name: its name in messages.
        end: the token that ends a document, or `NO_END`; None: the one of `END_OF_TEXT` that it has.
    """

    def __init__(self, tokenizer_json: str, name: str, end: str | None = None) -> None:
        self.name = name
        content = json.loads(tokenizer_json)
        self.end_of_text = _find_end_of_text(content, end)
        tokenizer = _import_library("tokenizers").Tokenizer.from_str(_drop_sentinels(content, self.end_of_text))
        # Some files carry the limits of the model that they were made for.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        digest = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
        self.identity = f"tokenizer.json {digest} {self.end_of_text}"

    @property
    def json(self) -> str:
        """The tokenizer as the content of a tokenizer.json."""
        return str(self._tokenizer.to_str())

    def encode(self, texts: list[str]) -> list[NDArray[Any]]:
        prepare_threads()
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # the library raises plain Exception
            raise DataError(
                f"The tokenizer {self.name} cannot encode the text: {explain(error)}. Its unknown token must be in its "
                "vocabulary, or the vocabulary must have all words of the text."
            ) from error
        return [np.asarray(encoding.ids, np.uint32) for encoding in encodings]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokenizer": self._tokenizer.to_str()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tokenizer = _import_library("tokenizers").Tokenizer.from_str(state["_tokenizer"])
        tokenizer.encode_special_tokens = True  # which is not in the file
        self.__dict__.update({**state, "_tokenizer": tokenizer})


def _find_end_of_text(content: Any, end: str | None) -> int | None:
    """Return the id of the token `end` in a tokenizer.json. For None as `end`, that of the only token of `END_OF_TEXT`
    among the special tokens or, if there is none, in the vocabulary. Return None if there is no such token. Raises
    DataError."""
    _, added, ids = _read_vocabulary(content)
    special = [token["content"] for token in added if token.get("special")]
    if end is not None:
        return _get_end(end, ids.get(end), special)
    for tokens in (special, ids):
        if found := [token for token in END_OF_TEXT if token in tokens]:
            return ids[found[0]] if len(found) == 1 else None
    return None


def _get_end(end: str, number: int | None, special: Sequence[str]) -> int | None:
    """Return the `number` of the token `end`; None for `NO_END`. Raises DataError, with the `special` tokens of the
    vocabulary, if it has none."""
    if number is None and end != NO_END:
        there = ", ".join(special[:10]) or "none"
        raise DataError(
            f"its vocabulary has no token {end!r}, which is to end a document. Set data.end_of_text to one that it "
            f"has (its special tokens: {there}), or to {NO_END}"
        )
    return number


def _drop_sentinels(content: Any, end: int | None) -> str:
    """Return a tokenizer.json without the special tokens at the end of its vocabulary that no text produces. The end of
    text, the token of unknown words and results of merges stay."""
    vocabulary, added, ids = _read_vocabulary(content)
    model, unigram = content["model"], isinstance(vocabulary, list)
    _check_ids(ids)
    merged = ("".join(merge).replace(" ", "") for merge in model.get("merges") or ())
    kept = {end, model.get("unk_id"), ids.get(model.get("unk_token")), *map(ids.get, merged)}
    special = {token["id"] for token in added if token.get("special")} - kept
    size = max(ids.values(), default=-1) + 1
    while size - 1 in special:
        size -= 1
    content["added_tokens"] = [token for token in added if token["id"] < size]
    model["vocab"] = vocabulary[:size] if unigram else {k: number for k, number in vocabulary.items() if number < size}
    return json.dumps(content, ensure_ascii=False)


def _read_vocabulary(content: Any) -> tuple[Any, list[dict[str, Any]], dict[str, int]]:
    """Return (the vocabulary, the added tokens, token -> id of both) of a tokenizer.json. Raises DataError if it has
    another structure."""
    try:
        vocabulary, added = content["model"]["vocab"], content.get("added_tokens") or []
        # pairs of a piece and its score in Unigram; a mapping in all other models
        unigram = isinstance(vocabulary, list)
        ids = {piece: number for number, (piece, _) in enumerate(vocabulary)} if unigram else dict(vocabulary)
        ids |= {token["content"]: token["id"] for token in added}
    except (KeyError, TypeError, ValueError, AttributeError):
        shape = '{"model": {"type": ..., "vocab": ...}, "added_tokens": [{"id": ..., "content": ...}]}'
        raise DataError(f"expected {shape}, as the library tokenizers writes it") from None
    return vocabulary, added, ids


def _check_ids(ids: dict[str, int]) -> None:
    """Raise DataError for an empty vocabulary and for impossible ids, with which the library aborts the process."""
    if not ids:
        raise DataError("its vocabulary is empty")
    for token, number in ids.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < MOST_VOCABULARY:
            accepted = f"whole numbers from 0 to {MOST_VOCABULARY - 1:,}"
            raise DataError(f"the token {token!r} has the id {number!r}. Accepted: {accepted}.")


class SentencePiece:
    """A SentencePiece model; `end` is the piece that ends a document, or `NO_END`; None: the model's own."""

    def __init__(self, processor: Any, end: str | None = None) -> None:
        self._processor = processor
        self.vocab_size = int(processor.get_piece_size())
        self.end_of_text = int(processor.eos_id()) if processor.eos_id() >= 0 else None
        if end is not None:
            number = processor.piece_to_id(end)  # that of the unknown piece, if there is none
            special = [processor.id_to_piece(i) for i in range(self.vocab_size) if processor.is_control(i)]
            self.end_of_text = _get_end(end, number if processor.id_to_piece(number) == end else None, special)
        digest = hashlib.sha256(processor.serialized_model_proto()).hexdigest()
        self.identity = f"sentencepiece {digest} {self.end_of_text}"

    @property
    def model(self) -> bytes:
        """The model as the content of a *.model file."""
        return bytes(self._processor.serialized_model_proto())

    def encode(self, texts: list[str]) -> list[NDArray[Any]]:
        threads = torch.get_num_threads()
        return [np.asarray(ids, np.uint32) for ids in self._processor.encode(texts, out_type=int, num_threads=threads)]


def load_tokenizer(name: str, end: str | None = None) -> Tokenizer:
    """Return the tokenizer called `name`: "bytes", a path, or the name of a repository on the Hugging Face hub. A
    downloaded tokenizer is not requested again. Its documents end with the token `end`; None: with the one that the
    files beside it name, or its own. Raises DataError if there is none, it is damaged, or the hub cannot be reached.
    """
    if name == "bytes":
        return Bytes(end)
    path = expand_path(name)
    if os.path.isfile(path / "tokenizer.json"):
        path /= "tokenizer.json"
    if os.path.isfile(path):
        if path.suffix == ".json":
            return _load_json(path, end)
        if ".model" in path.suffixes:
            return _load_model(path, end)
        raise DataError(f"{path} is not a readable tokenizer. {ACCEPTED}")
    if os.path.isdir(path):
        raise DataError(f"The folder {path} has no tokenizer.json. {ACCEPTED}")
    if os.path.exists(path):
        read_stamps([path])  # says what it is
    if is_path(name) or path.suffix in (".json", ".model"):
        raise DataError(f"There is no tokenizer {path}.{suggest_name(path)} {ACCEPTED}")
    return _load_from_hub(name, end)


def load_data_tokenizer(data: Any, cache: Path) -> Tokenizer:
    """Return the tokenizer of a data configuration: bytes if it has none. Raises DataError."""
    if hasattr(data, "load_tokenizer"):
        tokenizer: Tokenizer = data.load_tokenizer(cache)
        return tokenizer
    return load_tokenizer(getattr(data, "tokenizer", "bytes"), getattr(data, "end_of_text", None))


def keep_tokenizer(text: str, cache: Path) -> Path:
    """Write the `text` of a tokenizer.json into `cache` and return its file."""
    content = text.encode()
    file = cache / "tokenizers" / f"{hashlib.sha256(content).hexdigest()}.json"
    with hold_lock(file):
        write_whole(file, content)
    return file


def refuse_bpe(name: str, what: str) -> None:
    """Raise ValueError for a tokenizer that would be trained on `what` if the model has its own."""
    if name.startswith("bpe-"):
        raise ValueError(
            f"tokenizer {name} would be trained on the {what}. To use a run's tokenizer: ablate export RUN --to hf "
            "--output FOLDER, then data.tokenizer=FOLDER/tokenizer.json"
        )


def check_end_of_text(tokenizer: Tokenizer, end: str | None, name: str) -> None:
    """Raise DataError if it is unknown how to end one of several documents: no file names the token, and the setting
    `end` makes no choice."""
    if tokenizer.end_of_text is None and end is None:
        raise DataError(
            f"It is unknown which token of the tokenizer {name} ends a document: there is no {_SETTINGS[0]} with an "
            "eos_token beside it. Set data.end_of_text to that token, such as '<|endoftext|>', or to "
            f"{NO_END}, with which one document runs into the next."
        )


def _read_end(folder: Path) -> str | None:
    """Return the end of text that the files of transformers in a folder name; None if they name none. Raises DataError
    for a damaged file."""
    for path in (folder / name for name in _SETTINGS):
        if not os.path.isfile(path):
            continue
        try:
            settings = json.loads(path.read_text(encoding="utf-8-sig"))
            token = settings.get("eos_token")
            token = token.get("content") if isinstance(token, dict) else token
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise DataError(
                f"{path.name} beside it, which names its end of text, is damaged ({explain(error)})"
            ) from None
        if isinstance(token, str):
            return token
    return None


def _load_json(path: Path, end: str | None) -> Tokenizer:
    _import_library("tokenizers")
    try:
        # Read here and not by the library, whose errors do not tell a missing permission from a damaged file.
        return HuggingFace(path.read_text(encoding="utf-8"), str(path), end or _read_end(path.parent))
    except Exception as error:  # the library raises plain Exception
        raise DataError(f"The tokenizer {path} cannot be read: {explain(error)}") from error


def _load_model(path: Path, end: str | None) -> Tokenizer:
    library = _import_library("sentencepiece")
    try:
        if not (content := path.read_bytes()):
            raise DataError("it is empty. Copy it again")
        processor = library.SentencePieceProcessor(model_proto=content)
        return SentencePiece(processor, end or _read_end(path.parent))
    except (OSError, RuntimeError, ValueError, DataError) as error:
        raise DataError(f"The SentencePiece model {path} cannot be read: {explain(error)}") from error


def _load_from_hub(name: str, end: str | None) -> Tokenizer:
    _import_library("tokenizers")
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, LocalEntryNotFoundError

    try:
        try:
            file = hf_hub_download(name, "tokenizer.json", local_files_only=True)
        except LocalEntryNotFoundError:
            HfApi().model_info(name, timeout=TIMEOUT)  # the download itself would try again and again
            file = hf_hub_download(name, "tokenizer.json")
            for beside in _SETTINGS:
                with contextlib.suppress(EntryNotFoundError):
                    hf_hub_download(name, beside)
    except GatedRepoError as error:
        raise DataError(
            f"The tokenizer {name!r} is gated: its owner asks for an agreement. Agree to it on "
            f"https://huggingface.co/{name}, then log in with: hf auth login. The path of a local copy also works."
        ) from error
    except Exception as error:  # whatever the network, the hub and the library raise
        raise DataError(
            f"There is no local file {name!r}, and the Hugging Face hub could not be reached or has no "
            f"tokenizer.json of that name ({explain(error)}). The path of a local tokenizer.json also works. {ACCEPTED}"
        ) from error
    return _load_json(Path(file), end)


def _import_library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(f"This tokenizer needs the library {name}: pip install {name}") from error
