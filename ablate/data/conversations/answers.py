"""Examples of which the answers alone are trained on: their tokens, how they are cut and packed, and the dataset."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ablate.config.errors import DataError
from ablate.data.base import IGNORED, Batch, BatchDataset
from ablate.data.conversations.objects import Objects, Row
from ablate.data.conversations.turns import Turn
from ablate.data.files import absolute, locked, replace
from ablate.data.progress import progress
from ablate.data.text.rows import padded
from ablate.data.text.tokenizers import Tokenizer
from ablate.data.text.tokens import dtype_for

LAYOUT = 1
"""Raised whenever the same rows and tokenizer would give other tokens."""

BATCH = 1000
"""Examples that are encoded at a time."""


@dataclass(frozen=True)
class Examples:
    """Examples one after the other."""

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

    def taken(self, numbers: NDArray[np.int64]) -> Examples:
        """Those of `numbers`, in that order."""
        starts = np.cumsum(self.lengths) - self.lengths
        places = _places(starts[numbers], self.lengths[numbers])
        return Examples(self.tokens[places], self.answers[places], self.lengths[numbers], self.sizes[numbers])

    def cut(self, size: int) -> tuple[Examples, int, int]:
        """Examples of at most `size` tokens: what is behind is cut off, and an example of which no answer is left is
        left out. With them how many were cut and how many left out."""
        kept = np.minimum(self.lengths, size)
        starts = np.cumsum(self.lengths) - self.lengths
        before = np.append(0, np.cumsum(self.answers))
        whole = before[starts + self.lengths] - before[starts]
        # The first token of a row is no target, so that it does not count as one that is left.
        left = before[starts + kept] - before[np.minimum(starts + 1, starts + kept)]
        there = left > 0
        places = _places(starts[there], kept[there])
        share = (before[starts + kept] - before[starts])[there] / whole[there]
        sizes = np.rint(self.sizes[there] * share).astype(np.int64)
        shorter = int(np.sum((self.lengths > size) & there))
        return Examples(self.tokens[places], self.answers[places], kept[there], sizes), shorter, int(np.sum(~there))

    def packed(self, size: int) -> NDArray[np.int64]:
        """The lengths of rows of at most `size` tokens, each of as many whole examples, in their order, as fit."""
        rows: list[int] = []
        for length in self.lengths.tolist():
            if rows and rows[-1] + length <= size:
                rows[-1] += length
            else:
                rows.append(length)
        return np.array(rows, np.int64)


def _places(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """`starts[i] + range(lengths[i])` for all i, one after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)


class AnswerRows(BatchDataset):
    """Rows of `seq_len + 1` tokens at most: inputs are all but the last token, targets all but the first.

    Targets are `IGNORED` but for those of answers, and so are those behind the end of a row, where inputs are zero.

    Args:
        examples: what the rows consist of, one after the other.
        seq_len: tokens of an input.
        lengths: tokens of each row [rows].
    """

    def __init__(self, examples: Examples, seq_len: int, lengths: NDArray[np.int64]) -> None:
        self.seq_len, self.examples = seq_len, examples
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths

    def __len__(self) -> int:
        return len(self._ends)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Inputs and targets, int64 [batch, seq_len] each."""
        rows = np.asarray(indices, np.int64)
        places = self._starts[rows, None] + np.arange(self.seq_len + 1)
        inside = torch.from_numpy(places < self._ends[rows, None])
        places = np.minimum(places, len(self.examples.tokens) - 1)
        inputs, targets = padded(torch.from_numpy(self.examples.tokens[places].astype(np.int64)), inside)
        return inputs, targets.where(torch.from_numpy(self.examples.answers[places[:, 1:]]), IGNORED)

    def bytes_per_token(self) -> float:
        """Mean UTF-8 bytes of a target that is trained on."""
        return float(self.examples.sizes.sum() / self.examples.answers.sum())


Read = Callable[[str, dict[str, Any]], list[Turn]]
"""Where a row is and its values by column -> the parts of an example. Raises DataError."""


def cached_examples(cache: Path, source: Objects, tokenizer: Tokenizer, read: Read, how: Sequence[Any]) -> Examples:
    """The tokens of a source, encoded only where `cache` does not hold them already. `how` is all that `read` depends
    on, for JSON. Raises DataError for rows that are not as expected, and where there is none."""
    asked = [LAYOUT, source.fingerprint, tokenizer.identity, *how]
    path = absolute(cache) / "instructions" / f"{hashlib.sha256(json.dumps(asked).encode()).hexdigest()}.npz"
    if (found := _open(path)) is not None:
        return found
    with locked(path):
        if (found := _open(path)) is None:
            found = _encode(source, tokenizer, read)
            content = io.BytesIO()
            np.savez(content, **vars(found))
            replace(path, hashlib.sha256(content.getbuffer()).digest() + content.getbuffer())
    return found


def _open(path: Path) -> Examples | None:
    """What is kept at `path`; None where that is missing or damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        return None
    with np.load(io.BytesIO(content[32:])) as arrays:
        return Examples(**arrays)


def _encode(source: Objects, tokenizer: Tokenizer, read: Read) -> Examples:
    tokens: list[NDArray[Any]] = []
    answers: list[NDArray[np.bool_]] = []
    lengths: list[int] = []
    sizes: list[int] = []
    end = np.array([] if tokenizer.end_of_text is None else [tokenizer.end_of_text], np.int64)
    rows = iter(source)
    with progress(f"tokenising {source.name}", None, "examples") as advance:
        while batch := list(islice(rows, BATCH)):
            for parts in _encoded(batch, tokenizer, read):
                ids = [np.append(ids, end) if turn.answer else ids for turn, ids in parts]
                tokens += ids
                answers += [np.full(len(i), turn.answer) for (turn, _), i in zip(parts, ids, strict=True)]
                lengths.append(sum(map(len, ids)))
                sizes.append(sum(len(turn.text.encode()) + len(end) for turn, _ in parts if turn.answer))
            advance(len(lengths))
    if not lengths:
        raise DataError(f"There is no example in {source.name}")
    dtype = dtype_for(tokenizer.vocab_size)
    return Examples(np.concatenate(tokens).astype(dtype), np.concatenate(answers), np.array(lengths), np.array(sizes))


def _encoded(batch: list[Row], tokenizer: Tokenizer, read: Read) -> Iterator[list[tuple[Turn, NDArray[Any]]]]:
    """The parts of each row with their ids. What is asked and what is answered are encoded apart, so that the tokens of
    the one do not depend on the other, as where an answer is generated."""
    rows = []
    for where, row in batch:
        rows.append(read(where, row))
        try:
            "".join(turn.text for turn in rows[-1]).encode()
        except UnicodeEncodeError:
            text = "the text has a lone surrogate (half a character) and is not valid Unicode"
            raise DataError(f"{where}: {text}") from None
    ids = iter(tokenizer.encode([turn.text for turns in rows for turn in turns]))
    for turns in rows:
        yield [(turn, next(ids)) for turn in turns]
