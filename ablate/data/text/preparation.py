"""From where text lies to datasets of windows or rows: what training and each validation set have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ablate.config.base import Config, Names
from ablate.config.errors import DataError
from ablate.data.base import BatchDataset, TrainSet, split
from ablate.data.files import resolve
from ablate.data.text.documents import ACCEPTED, format_of
from ablate.data.text.rows import Rows
from ablate.data.text.sources import Part, Source, dataset_source, files_source
from ablate.data.text.tokenizers import Tokenizer
from ablate.data.text.tokens import Tokens, cached_tokens
from ablate.data.text.windows import Windows
from ablate.tracking.remote_files import local

VAL_TOKENS = 10_000_000
"""How many tokens of a dataset are validated on where nothing is said: what the papers evaluate on at least."""


class ExtraText(Config):
    """A further validation set: files, or a split of a dataset."""

    files: Names = ()
    """Paths or globs, as in `data.files`."""
    dataset: str | None = None
    """In place of `files`: a dataset of the Hugging Face hub, or a folder that `datasets` can load."""
    subset: str | None = None
    """Which of the dataset's subsets."""
    split: str = "validation"
    """The dataset's split."""
    revision: str | None = None
    """Branch, tag or commit of the dataset on the hub."""
    column: str | None = None
    """Where the text is kept. None: in `data.column`."""
    tokens: int | None = Field(None, ge=1)
    """How many tokens are made, to the end of a document. None: as many as of the main validation set."""

    @model_validator(mode="after")
    def _has_one_origin(self) -> ExtraText:
        one_origin(self.files, self.dataset)
        return self

    def source(self, column: str, cache: Path) -> Source:
        """Its documents; `column` is where they are unless it has its own. Raises DataError."""
        column = self.column or column
        return origin(self.files, self.dataset, self.subset, self.split, self.revision, column, cache)


def one_origin(files: Sequence[str], dataset: str | None) -> None:
    """Raises ValueError unless either files or a dataset are given."""
    if bool(files) == (dataset is not None):
        both = "both are given" if files else "none is given"
        raise ValueError(f"needs either files or dataset, and {both}")


def origin(
    files: Sequence[str],
    dataset: str | None,
    subset: str | None,
    split: str,
    revision: str | None,
    column: str,
    cache: Path,
) -> Source:
    """The documents of `files` or, where a dataset is named, of its split. Raises DataError where they are missing."""
    if dataset is not None:
        return dataset_source(dataset, subset, split, revision, column, cache)
    return files_source(resolve(local(files, cache), format_of, ACCEPTED), column, cache)


def combined(fingerprints: Sequence[str]) -> str:
    """One SHA-256 for several; of a single one, itself."""
    return fingerprints[0] if len(fingerprints) == 1 else hashlib.sha256("".join(fingerprints).encode()).hexdigest()


@dataclass(frozen=True)
class Maker:
    """Makes datasets of one tokenizer, length and layout."""

    tokenizer: Tokenizer
    seq_len: int
    documents: bool
    """Whether a row is a document; else windows are cut from the stream of all."""
    cache: Path

    def tokens(self, source: Source, limit: int | None) -> Tokens:
        """The tokens of a source, at most about `limit`. Raises DataError where there are none."""
        tokens = cached_tokens(self.cache, source, self.tokenizer, self.seq_len + 1 if self.documents else None, limit)
        if tokens.count:
            return tokens
        if isinstance(source, Part):
            side = "held out for validation" if source.held_out else "left to train on"
            raise DataError(
                f"Too little data: no document of {source.whole.name} is {side} (val_fraction={source.fraction}). "
                "Name a validation set (data.val_files or data.val_split), or set another data.val_fraction."
            )
        raise DataError(f"There is no text in {source.name}")

    def all(self, tokens: Tokens, what: str) -> BatchDataset:
        """All windows or rows. Raises DataError where there is none; `what` is what the message calls them."""
        if self.documents:
            return Rows(tokens, self.seq_len, np.arange(tokens.documents))
        if tokens.count <= self.seq_len:
            raise DataError(
                f"Too little data: {what} has {tokens.count:,} tokens, one window of seq_len={self.seq_len} needs "
                f"{self.seq_len + 1:,}."
            )
        return Windows(tokens.path, self.seq_len, np.arange(tokens.count // (self.seq_len + 1)))

    def split(
        self, tokens: Tokens, val_fraction: float, split_seed: int, what: str
    ) -> tuple[BatchDataset, BatchDataset]:
        """(training, validation) of the windows or rows. Raises DataError for fewer than two."""
        if self.documents:
            if tokens.documents < 2:
                raise DataError(
                    f"Too little data: {what} is a single document, and layout=documents needs one to train on and one "
                    "to validate on. A text file is one document: take layout=packed, several files, or JSON lines."
                )
            train, val = split(tokens.documents, val_fraction, split_seed, f"documents in {what}")
            return Rows(tokens, self.seq_len, train), Rows(tokens, self.seq_len, val)
        train, val = split_windows(tokens.count, self.seq_len, val_fraction, split_seed, f"The text ({what})")
        return Windows(tokens.path, self.seq_len, train), Windows(tokens.path, self.seq_len, val)

    def bytes_per_token(self, tokens: Tokens, data: BatchDataset) -> float:
        """Mean UTF-8 bytes of a target in `data`."""
        if self.tokenizer.identity == "bytes":
            return 1.0
        if isinstance(data, Rows):
            return data.bytes_per_token()
        assert isinstance(data, Windows)
        first = data.numbers * (self.seq_len + 1) + 1
        total = np.sum(tokens.bytes_at(first + self.seq_len) - tokens.bytes_at(first))
        return float(total / (len(data) * self.seq_len))

    def counted(self, tokens: Tokens, name: str) -> str:
        """How much there is, for the description; `name` is the tokenizer's."""
        return f"{tokens.count:,} tokens ({name}) of {tokens.documents:,} documents"

    def sizes(self, train: TrainSet, val: BatchDataset) -> str:
        """How many windows or rows there are, for the description."""
        items = f"documents of up to {self.seq_len} tokens" if self.documents else f"windows of {self.seq_len}"
        trained = f"{len(train):,} training and " if isinstance(train, BatchDataset) else ""
        return f"{trained}{len(val):,} validation {items}"


def split_windows(
    count: int, seq_len: int, val_fraction: float, split_seed: int, what: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of the windows of `count` tokens for (training, validation). Raises DataError for fewer than two."""
    size = seq_len + 1
    if count < 2 * size:
        raise DataError(
            f"Too little data: {what} has {count:,} tokens, a window to train on and one to validate on need "
            f"{2 * size:,} with seq_len={seq_len}."
        )
    return split(count // size, val_fraction, split_seed, f"windows of {size} tokens")
