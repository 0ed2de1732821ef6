"""Tokenised examples whose answers are trained on: their cache, cutting, packing into rows, and batching."""

from __future__ import annotations

import copy
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.config.errors import DataError
from ablate.config.lazy import torch
from ablate.data.base import IGNORED, Batch, BatchDataset
from ablate.data.conversations.rows import Row, RowSource, Turn
from ablate.data.files import expand_path, hold_lock, write_whole
from ablate.data.progress import show_progress
from ablate.data.readers import count_bytes
from ablate.data.text.layouts import pad_rows
from ablate.data.text.tokenizers import Tokenizer
from ablate.data.text.tokens import choose_dtype


@dataclass(frozen=True)
class Examples:
    """Concatenated examples."""

    tokens: NDArray[Any]
    """[tokens]"""
    answers: NDArray[np.bool_]
    """Whether a token belongs to an answer, its end of text included [tokens]."""
    lengths: NDArray[np.int64]
    """Tokens of each example [examples]."""
    sizes: NDArray[np.int64]
    """UTF-8 bytes of each example's answers, the end of text as one [examples]."""

    def __len__(self) -> int:
        return len(self.lengths)

    def select(self, numbers: NDArray[np.int64]) -> Examples:
        """Return the examples `numbers`, in that order."""
        starts = np.cumsum(self.lengths) - self.lengths
        places = _expand_ranges(starts[numbers], self.lengths[numbers])
        return Examples(self.tokens[places], self.answers[places], self.lengths[numbers], self.sizes[numbers])

    def iterate(self) -> Iterator[bytes]:
        """Yield the tokens of each example, which are equal for equal examples."""
        ends = np.cumsum(self.lengths)
        return (self.tokens[first:last].tobytes() for first, last in zip(ends - self.lengths, ends, strict=True))

    def cut(self, size: int) -> tuple[Examples, int, int]:
        """Return the examples cut to `size` tokens, without those of which no answer remains, and how many were cut and
        how many left out."""
        kept = np.minimum(self.lengths, size)
        starts = np.cumsum(self.lengths) - self.lengths
        before = np.append(0, np.cumsum(self.answers))
        whole = before[starts + self.lengths] - before[starts]
        # The first token of a row is no target, so that it does not count as one that is left.
        left = before[starts + kept] - before[np.minimum(starts + 1, starts + kept)]
        there = left > 0
        places = _expand_ranges(starts[there], kept[there])
        share = (before[starts + kept] - before[starts])[there] / whole[there]
        sizes = np.rint(self.sizes[there] * share).astype(np.int64)
        shorter = int(np.sum((self.lengths > size) & there))
        return Examples(self.tokens[places], self.answers[places], kept[there], sizes), shorter, int(np.sum(~there))

    def pack(self, size: int) -> NDArray[np.int64]:
        """Return the lengths of rows of at most `size` tokens, each of as many whole examples, in their order, as
        fit."""
        rows: list[int] = []
        for length in self.lengths.tolist():
            if rows and rows[-1] + length <= size:
                rows[-1] += length
            else:
                rows.append(length)
        return np.array(rows, np.int64)


def _expand_ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `starts[i] + range(lengths[i])` for all i, one after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)


class AnswerRows(BatchDataset):
    """Rows of `seq_len + 1` tokens at most: inputs are all but the last token, targets all but the first.

    Targets outside answers are `IGNORED`, as are targets after the end of a row, where inputs are zero.

    Args:
        examples: the rows' content, in order.
        seq_len: tokens of an input.
        lengths: tokens of each row [rows].
    """

    def __init__(self, examples: Examples, seq_len: int, lengths: NDArray[np.int64]) -> None:
        self.seq_len, self.examples = seq_len, examples
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths

    def select(self, numbers: NDArray[np.int64]) -> AnswerRows:
        rows = copy.copy(self)
        rows._starts, rows._ends = self._starts[numbers], self._ends[numbers]
        return rows

    def __len__(self) -> int:
        return len(self._ends)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return inputs and targets, int64 [batch, seq_len] each."""
        rows = np.asarray(indices, np.int64)
        places = self._starts[rows, None] + np.arange(self.seq_len + 1)
        inside = torch.from_numpy(places < self._ends[rows, None])
        places = np.minimum(places, len(self.examples.tokens) - 1)
        inputs, targets = pad_rows(torch.from_numpy(self.examples.tokens[places].astype(np.int64)), inside)
        return inputs, targets.where(torch.from_numpy(self.examples.answers[places[:, 1:]]), IGNORED)

    def measure_bytes_per_token(self) -> float:
        """Return the mean UTF-8 bytes of a token of an answer."""
        borders = np.append(0, np.cumsum(self.examples.lengths))  # a row begins and ends with an example
        sizes = np.append(0, np.cumsum(self.examples.sizes))
        first, last = (np.searchsorted(borders, places) for places in (self._starts, self._ends))
        answers = np.append(0, np.cumsum(self.examples.answers))
        return float(np.sum(sizes[last] - sizes[first]) / np.sum(answers[self._ends] - answers[self._starts]))


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
