"""Text for language models: Python's own documentation, which is always there, and files of the user's."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ablate.data.base import Corpus, DataConfig, data_kinds, split
from ablate.data.documents import READERS, Piece, read_documents
from ablate.data.files import content_fingerprint, resolve, stamps
from ablate.data.tokenizers import Tokenizer, load_tokenizer
from ablate.data.tokens import Tokens, cached_tokens
from ablate.data.windows import Windows
from ablate.errors import DataError
from ablate.registry import Names


@data_kinds.register
class Topics(DataConfig):
    """Half a megabyte of English prose that comes with Python: the help topics of `pydoc`, byte by byte.

    Documents are the topics in the order of their names, each ended by a zero byte. The text differs between Python
    versions, and its fingerprint with it.
    """

    kind: Literal["topics"] = "topics"
    task: ClassVar[str] = "language_modeling"
    seq_len: int = Field(128, ge=1)
    """Bytes of one training example. A window takes one byte more, which is the target of the last."""

    def load(self, cache: Path) -> Corpus:
        try:
            topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
        except ImportError as error:
            raise DataError("This Python comes without pydoc_data.topics, which data kind topics reads.") from error
        raw = b"".join(topics[name].encode() + b"\0" for name in sorted(topics))
        stream = np.frombuffer(raw, np.uint8)
        train, val = _split(len(stream), self, "topics")
        return Corpus(
            train=Windows(stream, self.seq_len, train),
            val=Windows(stream, self.seq_len, val),
            fingerprint=hashlib.sha256(raw).hexdigest(),
            classes=256,
            shape=(self.seq_len,),
            bytes_per_token=1.0,
            description=f"topics: {len(stream):,} bytes, {_windows(train, val, self.seq_len)}",
        )


@data_kinds.register
class Text(DataConfig):
    """Text files of one's own, tokenised once and kept in the cache.

    Formats by suffix: .txt and .md (a file is a document), .jsonl, .ndjson and .json-lines (a line is a document),
    .parquet (a row is a document). Each document is ended by the end-of-text token of the tokenizer, where it has one,
    and by a zero byte for "bytes". A text file of more than a megabyte is encoded in parts cut at line ends.
    """

    kind: Literal["text"] = "text"
    task: ClassVar[str] = "language_modeling"
    files: Annotated[Names, Field(min_length=1)]
    """Paths or globs (`**` goes into subfolders), relative to the current directory; the files of a glob are sorted."""
    val_files: Names = ()
    """The validation set. Without it a part of the windows of `files` is held out."""
    tokenizer: str = "bytes"
    """"bytes", a local tokenizer.json, a local SentencePiece *.model, or the name of a repository on the hub."""
    column: str = "text"
    """Where JSON lines and parquet files keep the text."""
    seq_len: int = Field(256, ge=1)
    """Tokens of one training example. A window takes one token more, which is the target of the last."""

    def load(self, cache: Path) -> Corpus:
        paths, val_paths = resolve(self.files, tuple(READERS)), resolve(self.val_files, tuple(READERS))
        both = {os.path.realpath(path) for path in paths} & {os.path.realpath(path) for path in val_paths}
        if both:
            raise DataError(f"Both in files and in val_files: {', '.join(sorted(both))}")
        tokenizer = load_tokenizer(self.tokenizer)
        fingerprint, tokens = self._tokens(paths, tokenizer, cache)
        if val_paths:
            val_fingerprint, val_tokens = self._tokens(val_paths, tokenizer, cache)
            fingerprint = hashlib.sha256((fingerprint + val_fingerprint).encode()).hexdigest()
            train = _all(tokens.count, self.seq_len, "The files for training")
            val = _all(val_tokens.count, self.seq_len, "The files for validation")
        else:
            val_tokens = tokens
            train, val = _split(tokens.count, self, f"The text ({', '.join(self.files)})")
        return Corpus(
            train=Windows(tokens.path, self.seq_len, train),
            val=Windows(val_tokens.path, self.seq_len, val),
            fingerprint=fingerprint,
            classes=tokenizer.vocab_size,
            shape=(self.seq_len,),
            bytes_per_token=1.0 if tokenizer.identity == "bytes" else _bytes_per_token(val_tokens, val, self.seq_len),
            description=f"text: {tokens.count:,} tokens ({self.tokenizer}) of {tokens.documents:,} documents, "
            f"{_windows(train, val, self.seq_len)}",
        )

    def _tokens(self, paths: list[Path], tokenizer: Tokenizer, cache: Path) -> tuple[str, Tokens]:
        """(fingerprint, tokens) of some files. Raises DataError where there are no tokens."""
        before = stamps(paths)
        fingerprint = content_fingerprint(paths, cache)

        def read() -> Iterator[Piece]:
            yield from read_documents(paths, self.column)
            if stamps(paths) != before:
                raise DataError(f"A file changed while it was read: one of {', '.join(self.files + self.val_files)}")

        # The same bytes give other documents when they are read as another format or from another column.
        formats = [READERS[path.suffix.lower()].__name__ for path in paths]
        tokens = cached_tokens(cache, " ".join([fingerprint, *formats, self.column]), tokenizer, read)
        if not tokens.count:
            raise DataError(f"There is no text in {', '.join(map(str, paths))}")
        return fingerprint, tokens


def _all(count: int, seq_len: int, what: str) -> NDArray[np.int64]:
    """The numbers of all windows. Raises DataError where there is none."""
    if count <= seq_len:
        raise DataError(
            f"Too little data: {what} have {count:,} tokens, one window of seq_len={seq_len} needs {seq_len + 1:,}."
        )
    return np.arange(count // (seq_len + 1))


def _split(count: int, config: Topics | Text, what: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of the windows for (training, validation). Raises DataError for fewer than two windows."""
    size = config.seq_len + 1
    if count < 2 * size:
        raise DataError(
            f"Too little data: {what} has {count:,} tokens, a window to train on and one to validate on need "
            f"{2 * size:,} with seq_len={config.seq_len}."
        )
    return split(count // size, config.val_fraction, config.split_seed, f"windows of {size} tokens")


def _bytes_per_token(tokens: Tokens, val: NDArray[np.int64], seq_len: int) -> float:
    """Mean UTF-8 bytes of the targets of the windows `val`."""
    first = val * (seq_len + 1) + 1
    total = np.sum(tokens.bytes_at(first + seq_len) - tokens.bytes_at(first))
    return float(total / (len(val) * seq_len))


def _windows(train: NDArray[np.int64], val: NDArray[np.int64], seq_len: int) -> str:
    return f"{len(train):,} training and {len(val):,} validation windows of {seq_len}"
