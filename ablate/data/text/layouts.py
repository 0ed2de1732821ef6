"""The two layouts of text, windows of the stream of all documents or one document in each row, and building datasets of
them for training and for each validation set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.config.errors import DataError
from ablate.config.lazy import torch
from ablate.data.base import IGNORED, Batch, BatchDataset
from ablate.data.splits import split
from ablate.data.text.sources import Side, Source
from ablate.data.text.tokenizers import Tokenizer
from ablate.data.text.tokens import Tokens, load_tokens


class Rows(BatchDataset):
    """Documents cut to `seq_len + 1` tokens: inputs are all but the last token, targets all but the first.

    Shorter ones are padded after their end, where it does not affect a causal model: inputs with zeros, targets with
    `IGNORED`, which the loss ignores.

    Args:
        tokens: rows of 2 to `seq_len + 1` tokens.
        seq_len: tokens of an input.
        numbers: which rows, in the order of the dataset [n].
    """

    def __init__(self, tokens: Tokens, seq_len: int, numbers: NDArray[np.int64]) -> None:
        self.seq_len, self.numbers = seq_len, numbers
        self._tokens = tokens
        self._files: tuple[NDArray[Any], NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return inputs and targets, int64 [batch, seq_len] each."""
        stream, ends = self._open()
        rows = self.numbers[np.asarray(indices, np.int64)]
        first = np.where(rows > 0, ends[rows - 1, 0], 0)
        places = first[:, None] + np.arange(self.seq_len + 1)
        inside = places < ends[rows, 0][:, None]
        tokens = torch.from_numpy(stream[np.minimum(places, len(stream) - 1)].astype(np.int64))
        return pad_rows(tokens, torch.from_numpy(inside))

    def select(self, numbers: NDArray[np.int64]) -> Rows:
        return Rows(self._tokens, self.seq_len, self.numbers[numbers])

    def measure_bytes_per_token(self) -> float:
        _, ends = self._open()
        sizes = np.diff(ends, axis=0, prepend=np.zeros((1, 2), np.int64))[self.numbers]
        # The first token of a row is no target: its share is taken to be that of any other.
        targets = sizes[:, 0] - 1
        return float(np.sum(sizes[:, 1] * targets / sizes[:, 0]) / np.sum(targets))

    def _open(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        if self._files is None:
            self._files = np.asarray(np.load(self._tokens.path, mmap_mode="r")), self._tokens.read_ends()
        return self._files

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": None}


def pad_rows(tokens: torch.Tensor, inside: torch.Tensor) -> Batch:
    """Return inputs and targets, [batch, seq_len] each, of rows [batch, seq_len + 1] with tokens where `inside` is
    true."""
    inputs = tokens.where(inside, 0)[:, :-1].contiguous()
    targets = tokens.where(inside, IGNORED)[:, 1:].contiguous()
    return inputs, targets


def mark_starts(inputs: torch.Tensor, end: int) -> torch.Tensor:
    """Return token ids [batch, seq] in which the first of each document but that of the window is negative, with all
    bits inverted: so a model that masks documents finds them (`ablate.models.attention.read_starts`), and no other
    model takes them for what they are not. `end`: the token that ends a document."""
    starts = torch.zeros_like(inputs, dtype=torch.bool)
    starts[:, 1:] = inputs[:, :-1] == end
    return torch.where(starts, ~inputs, inputs)


class Windows(BatchDataset):
    """Non-overlapping windows of `seq_len + 1` tokens: inputs are all but the last token, targets all but the first.

    Windows share no token, so neither do training and validation. The remainder after the last window is dropped.

    Args:
        tokens: the stream [count], or its file; a file is memory-mapped on first use in each process.
        seq_len: tokens of an input.
        numbers: which windows of the stream, in the order of the dataset [n].
        end: the token that ends a document, behind which the first token of the next is marked
            (`mark_starts`); None: nothing is marked.
    """

    def __init__(
        self, tokens: Tokens | NDArray[Any], seq_len: int, numbers: NDArray[np.int64], end: int | None = None
    ) -> None:
        self.seq_len, self.numbers, self.end = seq_len, numbers, end
        self._source = tokens
        self._table: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return inputs and targets, int64 [batch, seq_len] each."""
        rows = self.numbers[np.asarray(indices, np.int64)]
        windows = torch.from_numpy(self._windows()[rows].astype(np.int64))
        inputs, targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
        return inputs if self.end is None else mark_starts(inputs, self.end), targets

    def select(self, numbers: NDArray[np.int64]) -> Windows:
        return Windows(self._source, self.seq_len, self.numbers[numbers], self.end)

    def measure_bytes_per_token(self) -> float | None:
        if not isinstance(self._source, Tokens):
            return None
        first = self.numbers * (self.seq_len + 1) + 1
        total = np.sum(self._source.count_bytes(first + self.seq_len) - self._source.count_bytes(first))
        return float(total / (len(self) * self.seq_len))

    def _windows(self) -> NDArray[Any]:
        """The windows of the stream, [count // (seq_len + 1), seq_len + 1]."""
        if self._table is None:
            source = self._source
            tokens = np.asarray(np.load(source.path, mmap_mode="r")) if isinstance(source, Tokens) else source
            size = self.seq_len + 1
            self._table = tokens[: len(tokens) // size * size].reshape(-1, size)
        return self._table

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}


@dataclass(frozen=True)
class DatasetBuilder:
    """Builds datasets with one tokenizer, length and layout."""

    tokenizer: Tokenizer
    seq_len: int
    documents: bool
    """Whether a row is a document; otherwise windows are cut from the stream of all documents."""
    cache: Path
    masked: bool = False
    """Whether windows mark the first token of each document."""

    def load_tokens(self, source: Source, limit: int | None) -> Tokens:
        """Return the tokens of a source, at most about `limit`. Raises DataError if there are none."""
        tokens = load_tokens(self.cache, source, self.tokenizer, self.seq_len + 1 if self.documents else None, limit)
        if tokens.count:
            return tokens
        whole = source.whole if isinstance(source, Side) else source
        if isinstance(source, Side) and next(whole.read(), None) is not None:
            side = "held out for validation" if source.held_out else "left to train on"
            raise DataError(
                f"Too little data: no {source.what} of {whole.name} is {side} (val_fraction={source.fraction}). "
                "Set a validation set (data.val_files or data.val_split), or another data.val_fraction."
            )
        raise DataError(f"There is no text in {whole.name}")

    def build_all(self, tokens: Tokens, what: str, limit: int | None = None) -> BatchDataset:
        """Return all rows, or all windows of the first `limit` tokens. Raises DataError if there are none; the message
        calls them `what`."""
        if self.documents:
            return Rows(tokens, self.seq_len, np.arange(tokens.documents))
        count = min(tokens.count, limit or tokens.count)
        if count <= self.seq_len:
            raise DataError(
                f"Too little data: {what} has {count:,} tokens, one window of seq_len={self.seq_len} needs "
                f"{self.seq_len + 1:,}."
            )
        end = self.tokenizer.end_of_text if self.masked else None
        return Windows(tokens, self.seq_len, np.arange(count // (self.seq_len + 1)), end)

    def build_train(self, source: Source, limit: int | None, name: str) -> tuple[BatchDataset, str]:
        """Return the training set of a source, and its amount for the description; `name` is the tokenizer's."""
        tokens = self.load_tokens(source, limit)
        return self.build_all(tokens, "The training set"), f"{self.describe_tokens(tokens, name)} to train on"

    def split_rows(
        self, tokens: Tokens, val_fraction: float, split_seed: int, what: str
    ) -> tuple[BatchDataset, BatchDataset]:
        """Return (training, validation) of the rows. Raises DataError for fewer than two."""
        if tokens.documents < 2:
            raise DataError(
                f"Too little data: {what} is a single document, and layout=documents needs one for training and one "
                "for validation. A text file is one document: use layout=packed, several files, or JSON lines."
            )
        train, val = split(tokens.documents, val_fraction, split_seed, f"documents in {what}")
        return Rows(tokens, self.seq_len, train), Rows(tokens, self.seq_len, val)

    def measure_bytes_per_token(self, data: BatchDataset) -> float | None:
        """Return the mean UTF-8 bytes of a target in `data`."""
        return 1.0 if self.tokenizer.identity == "bytes" else data.measure_bytes_per_token()

    def describe_tokens(self, tokens: Tokens, name: str) -> str:
        """Return the amount of tokens and documents, for the description; `name` is the tokenizer's."""
        return f"{tokens.count:,} tokens ({name}) of {tokens.documents:,} documents"

    def describe_sizes(self, train: BatchDataset, val: BatchDataset) -> str:
        """Return the number of windows or rows, for the description."""
        items = f"documents of up to {self.seq_len} tokens" if self.documents else f"windows of {self.seq_len}"
        return f"{len(train):,} training and {len(val):,} validation {items}"
