"""Tokenise text into files: in parallel, with progress, and resumed after a killed process."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ablate.data.cache import write_whole
from ablate.data.progress import show_progress
from ablate.data.text.documents import Piece
from ablate.data.text.sources import Source
from ablate.data.text.tokenizers import Tokenizer


def encode_pieces(pieces: Iterator[Piece], tokenizer: Tokenizer, batch: int) -> Iterator[list[tuple[Piece, Any]]]:
    """Yield (piece, its ids, an array [tokens]) in batches of about `batch` bytes."""
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += piece.size
        if size >= batch:
            yield list(zip(group, tokenizer.encode([piece.text for piece in group]), strict=True))
            group, size = [], 0
    if group:
        yield list(zip(group, tokenizer.encode([piece.text for piece in group]), strict=True))


def keep_first_pieces(pieces: Iterator[Piece], inside: bool = False) -> Iterator[Piece]:
    """Yield the first piece of each document, which has more tokens than a row; `inside`: the first piece was read
    before."""
    for piece in pieces:
        if not inside:
            yield piece
        inside = not piece.last


def cut_row(piece: Piece, ids: NDArray[Any], end: int | None, row: int) -> tuple[NDArray[Any], int] | None:
    """Return at most `row` tokens of a document, including its end of text if it is not cut, and the number of bytes
    that they encode, estimated in proportion if it is cut; None for a document without a token to predict."""
    kept, size = ids[:row], piece.size
    if len(kept) < len(ids):
        size = round(size * len(kept) / len(ids))
    elif piece.last and end is not None and len(ids) < row:
        kept, size = np.append(ids, end), size + 1
    return (kept, size) if len(kept) > 1 else None


logger = logging.getLogger(__name__)

BATCH = 1 << 22
"""UTF-8 bytes that all threads together encode at a time."""

COMMIT_SECONDS = 5.0
"""Maximum seconds of work that a killed process loses."""


@dataclass
class Counts:
    """The progress of a tokenisation."""

    tokens: int = 0
    documents: int = 0
    bytes: int = 0
    """UTF-8 bytes of the documents, or of their kept parts, rounded."""
    ends: int = 0
    """Pieces or rows that were written."""
    inside: bool = False
    """Whether more pieces of the last document are to come."""


def tokenize(
    path: Path, dtype: np.dtype[Any], source: Source, tokenizer: Tokenizer, row: int | None, limit: int | None
) -> Counts:
    """Write `path` and its `.ends`, both .npy, completely or not at all; `token_cache` describes their content. Call it
    while holding the lock of `path`. Until they are complete the files have temporary names next to `path`, with a
    journal of how much is safely on the disk; a resumed and an uninterrupted process write the same bytes.
    """
    parts = path.with_suffix(".npy.part"), path.with_suffix(".ends.part")
    journal = path.with_suffix(".journal")
    counts, position = _read_journal(journal, parts, dtype)
    try:
        with contextlib.ExitStack() as stack:
            tokens, ends = (stack.enter_context(part.open("r+b" if counts.ends else "wb")) for part in parts)
            writer = _Writer(tokens, ends, dtype, counts, tokenizer.end_of_text, row)
            earlier = f", resumed at token {counts.tokens:,}" if counts.tokens else ""
            advance = stack.enter_context(show_progress(f"tokenising {source.name}{earlier}", limit))
            reader = source.open(position)
            committed = time.monotonic()
            for batch in encode_pieces(
                reader if row is None else keep_first_pieces(reader, counts.inside), tokenizer, BATCH
            ):
                for piece, ids in batch:
                    writer.write(piece, ids)
                    if limit is not None and counts.tokens >= limit:
                        break
                advance(counts.tokens)
                if limit is not None and counts.tokens >= limit:
                    break
                if counts.ends and time.monotonic() - committed >= COMMIT_SECONDS:
                    writer.sync()
                    note = {"counts": asdict(counts), "position": reader.position()}
                    write_whole(journal, json.dumps(note).encode())
                    committed = time.monotonic()
            writer.sync()
    except BaseException:
        if journal.exists():
            logger.warning(f"{source.name}: the tokens written so far are kept; the same command resumes there")
        else:
            for part in parts:
                part.unlink(missing_ok=True)
        raise
    for part, final in zip(parts, (path, path.with_suffix(".ends")), strict=True):
        part.replace(final)
    journal.unlink(missing_ok=True)
    return counts


def _read_journal(journal: Path, parts: tuple[Path, Path], dtype: np.dtype[Any]) -> tuple[Counts, Any]:
    """Return the progress of an earlier process, and the position of the source at which to resume."""
    try:
        note = json.loads(journal.read_bytes())
        counts = Counts(**note["counts"])
        whole = (_find_offset(dtype, counts.tokens), _find_offset(np.dtype("<i8"), 2 * counts.ends))
        if all(part.stat().st_size >= size for part, size in zip(parts, whole, strict=True)):
            return counts, note["position"]
    except (OSError, ValueError, TypeError, KeyError):
        pass
    journal.unlink(missing_ok=True)
    return Counts(), None


def _find_offset(dtype: np.dtype[Any], number: int) -> int:
    """Return the offset in a .npy file of the item with this number."""
    return HEADER + number * dtype.itemsize


HEADER = 128
"""The bytes of a .npy header: numpy pads it so that it does not depend on the length and can be written at the end."""


class _Writer:
    """The two files, opened for appending to the output of an earlier process, and the counts of their content."""

    def __init__(
        self,
        tokens: BinaryIO,
        ends: BinaryIO,
        dtype: np.dtype[Any],
        counts: Counts,
        end_of_text: int | None,
        row: int | None,
    ) -> None:
        self.tokens, self.ends, self.dtype, self.counts, self.row = tokens, ends, dtype, counts, row
        self.end = end_of_text
        tokens.truncate(_find_offset(dtype, counts.tokens))
        ends.truncate(_find_offset(np.dtype("<i8"), 2 * counts.ends))
        self._write_headers()
        tokens.seek(0, os.SEEK_END)
        ends.seek(0, os.SEEK_END)

    def write(self, piece: Piece, ids: NDArray[Any]) -> None:
        if self.row is None:
            size = piece.size
            if piece.last:
                self.counts.documents += 1
                if self.end is not None:
                    ids, size = np.append(ids, self.end), size + 1
            self._append(ids, size)
        elif kept := cut_row(piece, ids, self.end, self.row):
            self._append(*kept)
            self.counts.documents += 1
        self.counts.inside = not piece.last

    def _append(self, ids: NDArray[Any], size: int) -> None:
        counts = self.counts
        self.tokens.write(ids.astype(self.dtype).tobytes())
        counts.tokens, counts.bytes, counts.ends = counts.tokens + len(ids), counts.bytes + size, counts.ends + 1
        self.ends.write(np.array([counts.tokens, counts.bytes], "<i8").tobytes())

    def sync(self) -> None:
        """Write everything to the disk before returning."""
        self._write_headers()
        for file in (self.tokens, self.ends):
            file.seek(0, os.SEEK_END)
            file.flush()
            os.fsync(file.fileno())

    def _write_headers(self) -> None:
        counts = self.counts
        for file, dtype, shape in (
            (self.tokens, self.dtype, (counts.tokens,)),
            (self.ends, np.dtype("<i8"), (counts.ends, 2)),
        ):
            file.seek(0)
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
