"""The cache of tokenised examples."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.config.errors import DataError
from ablate.data.cache import hold_lock, write_whole
from ablate.data.conversations.packing import Examples
from ablate.data.conversations.sources import Row, RowSource
from ablate.data.conversations.templates import Turn
from ablate.data.files import expand_path
from ablate.data.progress import show_progress
from ablate.data.readers import count_bytes
from ablate.data.text.token_cache import choose_dtype
from ablate.data.text.tokenizers import Tokenizer

LAYOUT = 1
"""Incremented whenever the same rows and tokenizer would give different tokens."""


BATCH = 1000
"""Number of examples that are encoded at a time."""


Read = Callable[[str, dict[str, Any]], list[Turn]]
"""(Location of a row, its values by column) -> the parts of an example. Raises DataError."""


def load_examples(cache: Path, source: RowSource, tokenizer: Tokenizer, read: Read, how: Sequence[Any]) -> Examples:
    """Return the tokens of a source, encoded unless `cache` contains them already. `how` contains everything that
    `read` depends on, for JSON. Raises DataError for invalid rows, and if there are none."""
    facts = [LAYOUT, source.fingerprint, tokenizer.identity, *how]
    path = expand_path(cache) / "instructions" / f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()}.npz"
    if (examples := _open_examples(path)) is not None:
        return examples
    with hold_lock(path):
        if (examples := _open_examples(path)) is None:
            examples = _encode(source, tokenizer, read)
            content = io.BytesIO()
            np.savez(content, **vars(examples))
            write_whole(path, hashlib.sha256(content.getbuffer()).digest() + content.getbuffer())
    return examples


def _open_examples(path: Path) -> Examples | None:
    """Return the examples in the file `path`; None if it is missing or damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        return None
    with np.load(io.BytesIO(content[32:])) as arrays:
        return Examples(**arrays)


def _encode(source: RowSource, tokenizer: Tokenizer, read: Read) -> Examples:
    tokens: list[NDArray[Any]] = []
    answers: list[NDArray[np.bool_]] = []
    lengths: list[int] = []
    sizes: list[int] = []
    end = np.array([] if tokenizer.end_of_text is None else [tokenizer.end_of_text], np.int64)
    rows = iter(source)
    with show_progress(f"tokenising {source.name}", None, "examples") as advance:
        while batch := list(islice(rows, BATCH)):
            for parts in _encode_batch(batch, tokenizer, read):
                ids = [np.append(ids, end) if turn.answer else ids for turn, ids in parts]
                tokens += ids
                answers += [np.full(len(i), turn.answer) for (turn, _), i in zip(parts, ids, strict=True)]
                lengths.append(sum(map(len, ids)))
                sizes.append(sum(len(turn.text.encode()) + len(end) for turn, _ in parts if turn.answer))
            advance(len(lengths))
    if not lengths:
        raise DataError(f"{source.name} contains no examples")
    dtype = choose_dtype(tokenizer.vocab_size)
    return Examples(np.concatenate(tokens).astype(dtype), np.concatenate(answers), np.array(lengths), np.array(sizes))


def _encode_batch(batch: list[Row], tokenizer: Tokenizer, read: Read) -> Iterator[list[tuple[Turn, NDArray[Any]]]]:
    """Yield the parts of each row with their ids. Prompts and answers are encoded separately, so that their tokens do
    not depend on each other, as in generation."""
    rows = []
    for where, row in batch:
        rows.append(read(where, row))
        count_bytes(where, "".join(turn.text for turn in rows[-1]))  # which refuses what is not Unicode
    ids = iter(tokenizer.encode([turn.text for turns in rows for turn in turns]))
    for turns in rows:
        yield [(turn, next(ids)) for turn in turns]
