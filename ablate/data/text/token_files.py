"""Text that was tokenised by another program: `.bin` of llm.c, modded-nanogpt and nanoGPT, `.npy` of OLMo and numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from ablate.config.base import Names
from ablate.config.bounds import MOST_ITEMS, MOST_LENGTH, MOST_VOCABULARY
from ablate.config.errors import DataError
from ablate.config.formatting import count_noun, join_first, join_words
from ablate.config.lazy import torch
from ablate.data.base import Batch, BatchDataset, Corpus, DataConfig, data_kinds
from ablate.data.files import combine_fingerprints, explain, find_files, fingerprint_files, identify_file, remember
from ablate.data.overlap import check_overlap
from ablate.data.splits import split_text
from ablate.data.text.config import VAL_TOKENS
from ablate.data.text.sources import Piece, Source, compare
from ablate.data.text.tokenizers import Tokenizer, load_tokenizer
from ablate.tracking.remote_files import fetch_all

ACCEPTED = ".bin, .npy"
HEADER = 256 * 4
"""Bytes of the header of llm.c: 256 int32, of which the first three are a magic number, a version and the tokens."""
MAGIC = {20240520: (1, "<u2", 50_257), 20240801: (7, "<u4", 128_256)}
"""Magic number -> version, type and vocabulary: files of GPT-2, as modded-nanogpt has them, and of LLaMA 3."""
EVALUATION = 20240522
"""Magic number of llm.c for questions with several answers."""
PROBED, SMALLEST = 4096, 64
"""Numbers that are read to recognise the type of a file without a header, and the least that tell it."""
PIECE = 1 << 20
"""Tokens that are compared at a time."""


@data_kinds.register
class TokenFiles(DataConfig):
    """Files of tokens that another program wrote: one stream in each file, without a new tokenisation.

    Read are `.bin` files of llm.c and modded-nanogpt (a header of 256 int32, then uint16 or uint32), `.npy` files of
    numpy with one axis, and tokens without a header, `.bin` of nanoGPT and `.npy` of OLMo. Windows are cut from each
    file; none reaches into the next file. Without `val_files` contiguous blocks of windows are held out. The bytes of
    a token are not known, so that no bits per byte are reported.
    """

    kind: Literal["tokens"] = "tokens"
    task: ClassVar[str] = "language_modeling"
    files: Names
    """Paths or globs, relative to the current directory; the files of a glob are sorted."""
    val_files: Names = ()
    """The validation set, such as fineweb_val_*.bin. Without it a part of `files` is held out."""
    dtype: Literal["auto", "uint16", "uint32"] = "auto"
    """Type of the tokens in files without a header. auto: by their content."""
    tokenizer: str | None = None
    """The tokenizer that the tokens come from, for the vocabulary, downstream tasks and exports: a tokenizer.json, a
    SentencePiece *.model or a repository on the hub."""
    vocab_size: int | None = Field(None, ge=2, le=MOST_VOCABULARY)
    """Number of tokens of the vocabulary. None: that of the tokenizer, or of the header: 50,257 of GPT-2, 128,256 of
    LLaMA 3."""
    seq_len: int = Field(1024, ge=1, le=MOST_LENGTH)
    """Tokens of one training example. A window has one token more, which is the target of the last token."""
    train_tokens: int | None = Field(None, ge=1, le=MOST_ITEMS)
    """Number of training tokens to use, from the start of the files. None: all."""
    val_tokens: int | None = Field(None, ge=1, le=MOST_ITEMS)
    """Number of validation tokens to use, from the start. None: at most ten million."""

    @field_validator("files")
    @classmethod
    def _check_files(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        if not files:
            raise ValueError("is empty; give the paths of files, such as fineweb_train_*.bin")
        return files

    @property
    def wanted_val_samples(self) -> int | None:
        return None if self.val_tokens is None else max(1, self.val_tokens // (self.seq_len + 1))

    @property
    def most_val_samples(self) -> int | None:
        return max(1, (self.val_tokens or VAL_TOKENS) // (self.seq_len + 1))

    def count_prepared_bytes(self, classes: int) -> int | None:
        return 0

    def load(self, cache: Path) -> Corpus:
        train = self._open(self.files, cache)
        val = self._open(self.val_files, cache) if self.val_files else None
        if val:
            known = {identify_file(file.path) for file in train.files}
            if both := [str(file.path) for file in val.files if identify_file(file.path) in known]:
                raise DataError(f"Both in files and in val_files: {join_first(both, 3)}")
        classes = self._find_vocabulary([*train.files, *(val.files if val else ())], cache)
        size, note = self.seq_len + 1, ""
        kept = FileWindows(train.files, self.seq_len)
        if val:
            held = FileWindows(val.files, self.seq_len)
        else:
            parts = split_text(kept.ends.tolist(), self.val_fraction, self.split_seed, 1) if len(kept) else ([], [])
            numbers = [np.concatenate([np.arange(0), *(np.arange(*part) for part in side)]) for side in parts]
            kept, held = (kept.select(own) for own in numbers)
        wanted = self.most_val_samples
        if not len(kept) or not len(held) or (self.val_tokens and len(held) < (wanted or 0)):
            raise DataError(
                f"Too little data: {count_noun(len(kept), 'training window')} and {len(held):,} for validation of "
                f"seq_len={self.seq_len}{f', and data.val_tokens is {self.val_tokens:,}' if self.val_tokens else ''}. "
                "Give more files, data.val_files, a smaller data.seq_len or another data.val_fraction."
            )
        held = held.select(np.arange(len(held))[:wanted])
        kept = kept.select(np.arange(len(kept))[: self.train_tokens and max(1, self.train_tokens // size)])
        if val:
            wide = any(np.dtype(file.dtype).itemsize > 2 for file in (*train.files, *val.files))
            train_bytes, val_bytes = ((8 if wide else 4) * size * len(numbers) for numbers in (kept, held))
            overlap = compare(replace(train, wide=wide), replace(val, wide=wide), train_bytes, val_bytes, cache)
            shown = np.frombuffer(bytes.fromhex(overlap.example[:56]), "<u4" if wide else "<u2")
            example = f"the tokens {' '.join(map(str, shown.tolist()))} ..."
            note = check_overlap(overlap._replace(example=example), self.max_overlap, "data.val_files")
        return Corpus(
            train=kept,
            val=held,
            fingerprint=combine_fingerprints([train.fingerprint, *([val.fingerprint] if val else [])]),
            classes=classes,
            shape=(self.seq_len,),
            bytes_per_token=None,
            description=f"tokens: {sum(file.count for file in train.files):,} of {classes:,} kinds "
            f"({join_words(sorted({np.dtype(file.dtype).name for file in train.files}))}) in "
            f"{count_noun(len(train.files), 'file')}, {len(kept):,} training and {len(held):,} validation windows of "
            f"{self.seq_len}{note}",
        )

    def load_tokenizer(self, cache: Path) -> Tokenizer:
        """Return the tokenizer that made the tokens. Raises DataError if none is named, or it cannot be found."""
        if self.tokenizer is None:
            raise DataError("data.tokenizer is not set: name the tokenizer that the tokens come from, such as gpt2.")
        return load_tokenizer(self.tokenizer)

    def _open(self, names: Sequence[str], cache: Path) -> _TokenSource:
        """Return files of tokens as a source. Raises DataError."""
        suffixes = ACCEPTED.split(", ")
        paths = find_files(fetch_all(names, cache), lambda path: path.suffix.lower() in suffixes, ACCEPTED)
        files = tuple(read_header(path, None if self.dtype == "auto" else self.dtype) for path in paths)
        return _TokenSource(files, fingerprint_files(paths, cache))

    def _find_vocabulary(self, files: Sequence[TokenFile], cache: Path) -> int:
        """Return the size of the vocabulary. Raises DataError if it is not known, or a token is beyond it."""
        size, reason = self.vocab_size, "data.vocab_size"
        if size is None and self.tokenizer is not None:
            size, reason = load_tokenizer(self.tokenizer).vocab_size, f"the tokenizer {self.tokenizer}"
        if size is None and all(file.vocabulary for file in files):
            size, reason = max(file.vocabulary for file in files), "the header"
        for file in files:

            def find_bounds(file: TokenFile = file) -> list[str]:
                parts = (file.open()[at : at + PIECE] for at in range(0, file.count, PIECE))
                bounds = [bound for part in parts for bound in (int(part.min()), int(part.max()))] or [0]
                return [str(min(bounds)), str(max(bounds))]

            low, high = map(int, remember(f"tokens {file.dtype}", [file.path], cache, find_bounds))
            if size is None:
                raise DataError(
                    f"{file.path} has no header that tells its vocabulary, and its largest token is {high:,}: set "
                    "data.tokenizer or data.vocab_size (50257 of GPT-2, 50304 where it was padded, 100278 of OLMo 2)."
                )
            if low < 0 or high >= size:
                raise DataError(
                    f"{file.path} has the token {low if low < 0 else high:,} and {reason} has {size:,} tokens. Set a "
                    "larger data.vocab_size, or another data.dtype if the file has no header."
                )
        assert size is not None
        return size


@dataclass(frozen=True)
class TokenFile:
    """A file of tokens, which is memory-mapped."""

    path: Path
    dtype: str
    offset: int
    """Bytes before the first token."""
    count: int
    vocabulary: int = 0
    """The size of the vocabulary that the header tells; 0 if it tells none."""

    def open(self) -> NDArray[Any]:
        """Return the tokens [count]."""
        if not self.count:
            return np.zeros(0, self.dtype)
        return np.memmap(self.path, self.dtype, "r", self.offset, (self.count,))


def read_header(path: Path, dtype: str | None = None) -> TokenFile:
    """Return where the tokens of a file are. `dtype`: their type if there is no header; None: by the content. Raises
    DataError for a file that is damaged or has something else."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(HEADER)
        if head.startswith(b"\x93NUMPY"):
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            if array.ndim != 1 or array.dtype.kind not in "ui":
                text = f"{array.dtype} of shape {array.shape}, and integers with one axis are expected"
                raise DataError(f"{path} is an array of {text}.")
            return TokenFile(path, array.dtype.str, array.offset, len(array))
        words = np.frombuffer(head[: HEADER if len(head) == HEADER else 0], "<i4")
        if len(words) and words[0] == EVALUATION:
            raise DataError(f"{path} has questions with several answers, for llm.c to evaluate, and not a text.")
        if len(words) and int(words[0]) in MAGIC:
            version, known, vocabulary = MAGIC[int(words[0])]
            if words[1] != version:
                raise DataError(f"{path} has version {words[1]} of the format of llm.c; accepted: {version}.")
            there = (size - HEADER) / np.dtype(known).itemsize
            if there != words[2]:
                text = f"its header tells {words[2]:,} tokens and it has {there:,.15g}. Copy it again"
                raise DataError(f"{path} is damaged: {text}.")
            return TokenFile(path, known, HEADER, int(words[2]), vocabulary)
        probe = np.fromfile(path, "<u2", PROBED)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {explain(error)}") from error
    # a token of 32 bits below 2^20 has an upper half below 16, and not every lower half is
    low, high = (int(probe[start::2].max(initial=0)) for start in (0, 1))
    found = "uint32" if high < 16 <= low else "uint16"
    if dtype is None and len(probe) < SMALLEST:
        raise DataError(f"{path} has no header and is too short to tell the type of its tokens: set data.dtype=uint16.")
    if dtype == "uint16" and found == "uint32" and len(probe) >= SMALLEST:
        raise DataError(f"{path} has tokens of 32 bits, and data.dtype is uint16: omit it, or set data.dtype=uint32.")
    kind = np.dtype(dtype or found)
    if size % kind.itemsize:
        raise DataError(f"{path} has {size:,} bytes, which is no number of {kind.name} tokens. Copy it again.")
    return TokenFile(path, kind.newbyteorder("<").str, 0, size // kind.itemsize)


@dataclass(frozen=True)
class _TokenSource(Source):
    """Files of tokens as a text to be compared with another: each token in hexadecimal digits."""

    files: tuple[TokenFile, ...]
    fingerprint: str
    wide: bool = False
    """Whether a token has eight digits instead of four."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return join_first([file.path for file in self.files], 3)

    @property
    def identity(self) -> str:  # type: ignore[override]
        return " ".join(["tokens", self.fingerprint, *(file.dtype for file in self.files), str(self.wide)])

    def read(self) -> Iterator[Piece]:
        for file in self.files:
            for at in range(0, file.count, PIECE):
                text = file.open()[at : at + PIECE].astype("<u4" if self.wide else "<u2").tobytes().hex()
                yield Piece(text, len(text))


class FileWindows(BatchDataset):
    """Windows of `seq_len + 1` tokens of each file, one after the other: inputs are all but the last token, targets all
    but the first. The remainder of a file is dropped.

    Args:
        files: memory-mapped on first use in each process.
        numbers: which windows of all files, in the order of the dataset [n]. None: all.
    """

    def __init__(self, files: Sequence[TokenFile], seq_len: int, numbers: NDArray[np.int64] | None = None) -> None:
        self.files, self.seq_len = tuple(files), seq_len
        self.ends = np.cumsum([file.count // (seq_len + 1) for file in files])
        self.numbers = np.arange(self.ends[-1]) if numbers is None else numbers
        self._tables: dict[int, NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return inputs and targets, int64 [batch, seq_len] each."""
        rows = self.numbers[np.asarray(indices, np.int64)]
        windows = np.empty((len(rows), self.seq_len + 1), np.int64)
        owners = np.searchsorted(self.ends, rows, "right")
        for owner in np.unique(owners).tolist():
            mine = owners == owner
            windows[mine] = self._open(owner)[rows[mine] - (self.ends[owner - 1] if owner else 0)]
        tokens = torch.from_numpy(windows)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def select(self, numbers: NDArray[np.int64]) -> FileWindows:
        return FileWindows(self.files, self.seq_len, self.numbers[numbers])

    def _open(self, owner: int) -> NDArray[Any]:
        """Return the windows of a file [count // (seq_len + 1), seq_len + 1]."""
        if owner not in self._tables:
            size = self.seq_len + 1
            count = self.files[owner].count // size
            self._tables[owner] = self.files[owner].open()[: count * size].reshape(count, size)
        return self._tables[owner]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": {}}
