"""Datasets of windows or rows, for training and for each validation set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ablate.config.errors import DataError
from ablate.data.base import BatchDataset, TrainSet
from ablate.data.splits import split, split_windows
from ablate.data.text.layouts import Rows, Windows
from ablate.data.text.sources import Side, Source
from ablate.data.text.stream import Stream
from ablate.data.text.token_cache import Tokens, load_tokens
from ablate.data.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class DatasetBuilder:
    """Builds datasets with one tokenizer, length and layout."""

    tokenizer: Tokenizer
    seq_len: int
    documents: bool
    """Whether a row is a document; otherwise windows are cut from the stream of all documents."""
    cache: Path

    def load_tokens(self, source: Source, limit: int | None) -> Tokens:
        """Return the tokens of a source, at most about `limit`. Raises DataError if there are none."""
        tokens = load_tokens(self.cache, source, self.tokenizer, self.seq_len + 1 if self.documents else None, limit)
        if tokens.count:
            return tokens
        whole = source.whole if isinstance(source, Side) else source
        if isinstance(source, Side) and next(whole.open(), None) is not None:
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
        return Windows(tokens, self.seq_len, np.arange(count // (self.seq_len + 1)))

    def build_train(self, source: Source, limit: int | None, streaming: bool, name: str) -> tuple[TrainSet, str]:
        """Return the training set of a source, which is `streaming` or stored, and its amount for the description;
        `name` is the tokenizer's."""
        if streaming:
            stream = Stream(source, self.tokenizer, self.seq_len, self.documents, limit, self.cache)
            return stream, f"streamed ({name})"
        tokens = self.load_tokens(source, limit)
        return self.build_all(tokens, "The training set"), f"{self.describe_tokens(tokens, name)} to train on"

    def build_split(
        self, tokens: Tokens, val_fraction: float, split_seed: int, what: str
    ) -> tuple[BatchDataset, BatchDataset]:
        """Return (training, validation) of the windows or rows. Raises DataError for fewer than two."""
        if self.documents:
            if tokens.documents < 2:
                raise DataError(
                    f"Too little data: {what} is a single document, and layout=documents needs one for training and "
                    "one for validation. A text file is one document: use layout=packed, several files, or JSON "
                    "lines."
                )
            train, val = split(tokens.documents, val_fraction, split_seed, f"documents in {what}")
            return Rows(tokens, self.seq_len, train), Rows(tokens, self.seq_len, val)
        train, val = split_windows(tokens.count, self.seq_len, val_fraction, split_seed, f"The text ({what})")
        return Windows(tokens, self.seq_len, train), Windows(tokens, self.seq_len, val)

    def measure_bytes_per_token(self, data: BatchDataset) -> float | None:
        """Return the mean UTF-8 bytes of a target in `data`."""
        return 1.0 if self.tokenizer.identity == "bytes" else data.measure_bytes_per_token()

    def describe_tokens(self, tokens: Tokens, name: str) -> str:
        """Return the amount of tokens and documents, for the description; `name` is the tokenizer's."""
        return f"{tokens.count:,} tokens ({name}) of {tokens.documents:,} documents"

    def describe_sizes(self, train: TrainSet, val: BatchDataset) -> str:
        """Return the number of windows or rows, for the description."""
        items = f"documents of up to {self.seq_len} tokens" if self.documents else f"windows of {self.seq_len}"
        trained = f"{len(train):,} training and " if isinstance(train, BatchDataset) else ""
        return f"{trained}{len(val):,} validation {items}"
