"""Token streams in memory-mapped files: built once, checked at every start, rebuilt when damaged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ablate.data.documents import Piece
from ablate.data.files import absolute, file_sha256, locked, replace
from ablate.data.tokenizers import Tokenizer

LAYOUT = 1
"""Raised whenever the same corpus and tokenizer would give other files."""

BATCH = 1 << 20
"""UTF-8 bytes that are encoded at a time."""

MARKS = 1 << 16
"""At most about this many positions are kept at which the number of bytes is known."""


@dataclass(frozen=True)
class Tokens:
    """A stream of tokens: documents one after the other, each ended by the tokenizer's end of text."""

    path: Path
    """A .npy file of unsigned integers [count]."""
    count: int
    documents: int
    marks: NDArray[np.int64]
    """[n, 2]: pairs (tokens, UTF-8 bytes) counted from the start of the stream, ascending, from (0, 0) to the end."""

    def bytes_at(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """UTF-8 bytes in front of the tokens at `positions`, linear between marks; an end of text counts as one."""
        return np.interp(positions, self.marks[:, 0], self.marks[:, 1])


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """The narrowest unsigned integer that holds every id, in little-endian order."""
    return np.dtype("u1" if vocab_size <= 1 << 8 else "<u2" if vocab_size <= 1 << 16 else "<u4")


def cached_tokens(cache: Path, corpus: str, tokenizer: Tokenizer, read: Callable[[], Iterable[Piece]]) -> Tokens:
    """The tokens of a corpus, built from `read()` only where `cache` does not hold them already.

    Several processes may ask at once: one builds, the others wait. `corpus` identifies what `read` gives.
    """
    key = hashlib.sha256(json.dumps([LAYOUT, corpus, tokenizer.identity]).encode()).hexdigest()
    path = absolute(cache) / "tokens" / f"{key}.npy"
    dtype = dtype_for(tokenizer.vocab_size)
    tokens = _open(path, dtype)
    if tokens is not None:
        return tokens
    with locked(path):
        tokens = _open(path, dtype, thorough=True)
        if tokens is None:
            _build(path, dtype, tokenizer, read())
            tokens = _open(path, dtype)
    if tokens is None:
        raise RuntimeError(f"{path} does not hold what has just been written to it")
    return tokens


def _open(path: Path, dtype: np.dtype[Any], thorough: bool = False) -> Tokens | None:
    """The tokens at `path`, or None for a missing or damaged file.

    The content is compared only where the file was touched since it was last compared, and then only if `thorough`.
    """
    note = path.with_suffix(".json")
    try:
        facts = json.loads(note.read_bytes())
        tokens = Tokens(path, int(facts["count"]), int(facts["documents"]), np.array(facts["marks"], np.int64))
        mapped = np.load(path, mmap_mode="r") if tokens.count else np.load(path)
        intact = mapped.shape == (tokens.count,) and mapped.dtype == dtype
        if tokens.marks.shape[1] != 2 or tokens.marks[-1, 0] != tokens.count or not intact:
            return None
        touched = path.stat().st_mtime_ns
        if touched != facts["mtime_ns"]:
            if not thorough or file_sha256(path) != facts["sha256"]:
                return None
            replace(note, json.dumps({**facts, "mtime_ns": touched}).encode())
    except (OSError, ValueError, TypeError, KeyError, IndexError, EOFError):
        return None
    return tokens


def _build(path: Path, dtype: np.dtype[Any], tokenizer: Tokenizer, pieces: Iterable[Piece]) -> None:
    temporary = path.with_suffix(".npy.tmp")
    try:
        with temporary.open("wb") as file:
            count, documents, marks = _write(file, dtype, tokenizer, pieces)
        facts = {
            "count": count,
            "documents": documents,
            "marks": marks,
            "sha256": file_sha256(temporary),
            "mtime_ns": temporary.stat().st_mtime_ns,
        }
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    replace(path.with_suffix(".json"), json.dumps(facts).encode())


def _write(
    file: BinaryIO, dtype: np.dtype[Any], tokenizer: Tokenizer, pieces: Iterable[Piece]
) -> tuple[int, int, list[tuple[int, int]]]:
    """Writes a .npy file. Returns the numbers of tokens and of documents, and the marks."""
    count = documents = size = 0
    marks, spacing = [(0, 0)], 1
    _write_header(file, dtype, 0)
    for batch in _batches(pieces):
        for piece, ids in zip(batch, tokenizer.encode([piece.text for piece in batch]), strict=True):
            file.write(ids.astype(dtype).tobytes())
            count, size = count + len(ids), size + piece.size
            if piece.last:
                documents += 1
                if tokenizer.end_of_text is not None:
                    file.write(np.array(tokenizer.end_of_text, dtype).tobytes())
                    count, size = count + 1, size + 1
            if count - marks[-1][0] >= spacing:
                marks.append((count, size))
            if len(marks) > 2 * MARKS:
                marks, spacing = marks[::2], 2 * max(spacing, count // len(marks))
    if marks[-1][0] != count:
        marks.append((count, size))
    file.seek(0)
    _write_header(file, dtype, count)
    return count, documents, marks


def _write_header(file: BinaryIO, dtype: np.dtype[Any], count: int) -> None:
    """numpy pads the header so that its length does not depend on `count`: it can be written again at the end."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, header)


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += piece.size
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
