"""A byte-level BPE trained on the corpus: `tokenizer: bpe-4096`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from ablate.config.bounds import MOST_VOCABULARY
from ablate.config.errors import DataError
from ablate.data.files import expand_path, hold_lock, write_whole
from ablate.data.progress import show_progress
from ablate.data.text.sources import Source
from ablate.data.text.tokenizers import NO_END, HuggingFace, Tokenizer, load_tokenizer, prepare_threads

TRAINED_ON = 100_000_000
"""Maximum UTF-8 bytes of the training text, from its start, that a tokenizer is trained on."""

END = "<|endoftext|>"
SMALLEST = 257
"""The smallest number of tokens: the 256 bytes and the end of text."""

RECIPE = 1
"""Incremented whenever the same text would give a different tokenizer."""


def parse_bpe_size(name: str) -> int | None:
    """Return the number of tokens N of "bpe-N"; None for any other name, and for a number with too many digits."""
    match = re.fullmatch(r"bpe-(\d{1,12})", name)
    return int(match[1]) if match else None


def check_bpe_name(name: str) -> None:
    """Raise ValueError for the name of a BPE with too few or too many tokens."""
    size = parse_bpe_size(name) or 0
    if name.startswith("bpe-") and not SMALLEST <= size <= MOST_VOCABULARY:
        accepted = f"at least {SMALLEST}, as bpe-4096, and at most {MOST_VOCABULARY}"
        raise ValueError(f"tokenizer {name}: the name of a BPE contains its number of tokens, {accepted}")


def load_or_train(name: str, end: str | None, train: Source | None, cache: Path) -> Tokenizer:
    """Return the tokenizer of a kind of data that may be trained on its text `train`. Raises DataError."""
    size = parse_bpe_size(name)
    if size is None:
        return load_tokenizer(name, end)
    assert train is not None
    return train_bpe(size, train, cache, end)


def train_bpe(size: int, source: Source, cache: Path, end: str | None = None) -> HuggingFace:
    """Return a byte-level BPE of `size` tokens with GPT-2's rules for words and its end of text, trained on `source`,
    which contains only the training text. It is trained once and kept in `cache`; the same text gives the same
    tokenizer. Raises DataError if the text cannot be read or has too few words for so many tokens, and if a document
    is to end with another token: `end` is None, `END` or `NO_END`.
    """
    if end not in (None, END, NO_END):
        text = f"data.end_of_text is {end!r}, and a BPE that is trained on the text ends a document with {END!r}"
        raise DataError(f"{text}: omit it.")
    facts = [RECIPE, size, TRAINED_ON, source.identity]
    path = expand_path(cache) / "tokenizers" / f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()}.json"
    with hold_lock(path):
        try:
            content = json.loads(path.read_bytes())
            if hashlib.sha256(content["tokenizer"].encode()).hexdigest() == content["sha256"]:
                return HuggingFace(content["tokenizer"], f"bpe-{size}", end)
        except (OSError, ValueError, TypeError, KeyError):  # none yet, or a damaged one
            pass
        trained = _train(size, source)
        tokenizer = HuggingFace(trained, f"bpe-{size}", end)
        if tokenizer.vocab_size < size:
            raise DataError(
                f"The training text of {source.name} has enough words for {tokenizer.vocab_size} tokens only. "
                f"Set data.tokenizer=bpe-{tokenizer.vocab_size} or less."
            )
        sha256 = hashlib.sha256(trained.encode()).hexdigest()
        write_whole(path, json.dumps({"tokenizer": trained, "sha256": sha256}).encode())
    return tokenizer


def _train(size: int, source: Source) -> str:
    from tokenizers import Tokenizer as Trained
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = Trained(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    prepare_threads()
    tokenizer.train_from_iterator(_read_texts(source, size), trainer)
    return str(tokenizer.to_str())


def _read_texts(source: Source, size: int) -> Iterator[str]:
    read = 0
    with show_progress(f"training bpe-{size} on {source.name}", TRAINED_ON, "bytes") as advance:
        for piece in source.read():
            yield piece.text
            read += piece.size
            advance(read)
            if read >= TRAINED_ON:
                return
