"""Tokens in memory-mapped files: tokenised once, in parallel, checked at every start, and rebuilt when damaged."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ablate.data.files import expand_path, hash_file, hold_lock, write_whole
from ablate.data.progress import show_progress
from ablate.data.text.sources import Piece, Source
from ablate.data.text.tokenizers import Tokenizer

LAYOUT = 2
"""Incremented whenever the same text and tokenizer would give different files."""

BATCH = 1 << 22
"""UTF-8 bytes that all threads together encode at a time."""

HEADER = 128
"""The bytes of a .npy header: numpy pads it so that it does not depend on the length and can be written at the end."""


@dataclass(frozen=True)
class Tokens:
    """A stream of tokens: concatenated documents, each ending with the tokenizer's end of text, or rows."""

    path: Path
    """A .npy file of unsigned integers [count]."""
    count: int
    documents: int
    ends_path: Path
    """A .npy file, int64 [pieces, 2]: the tokens and UTF-8 bytes up to the end of each piece, or of each row."""

    def read_ends(self) -> NDArray[np.int64]:
        """Return the content of `ends_path`, memory-mapped."""
        return _map_array(self.ends_path, self.count)

    def count_bytes(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the number of UTF-8 bytes before the tokens at `positions`, interpolated within a document; an end of
        text counts as one."""
        ends = self.read_ends()
        return np.interp(positions, np.append(0, ends[:, 0]), np.append(0, ends[:, 1]))


def choose_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the narrowest unsigned integer type for all ids, in little-endian order."""
    return np.dtype("u1" if vocab_size <= 1 << 8 else "<u2" if vocab_size <= 1 << 16 else "<u4")


def load_tokens(
    cache: Path, source: Source, tokenizer: Tokenizer, row: int | None = None, limit: int | None = None
) -> Tokens:
    """Return the tokens of a source, tokenised unless `cache` contains them already. Several processes may call this at
    once: one builds, the others wait.

    Args:
        row: the maximum tokens of a document, which is then a row; None: all tokens, documents concatenated.
        limit: number of tokens after which to stop, at the end of a document.
    """
    facts = [LAYOUT, source.identity, tokenizer.identity, row, limit]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    path = expand_path(cache) / "tokens" / f"{key}.npy"
    dtype = choose_dtype(tokenizer.vocab_size)
    tokens = _open_tokens(path, dtype)
    if tokens is not None:
        return tokens
    with hold_lock(path):
        tokens = _open_tokens(path, dtype, thorough=True)
        if tokens is None:
            _tokenize(path, dtype, source, tokenizer, row, limit)
            tokens = _open_tokens(path, dtype)
    if tokens is None:
        raise RuntimeError(f"{path} does not contain the data that has just been written to it")
    return tokens


def _open_tokens(path: Path, dtype: np.dtype[Any], thorough: bool = False) -> Tokens | None:
    """Return the tokens at `path`, or None for missing or damaged files.

    The content is compared only if a file was modified since the last comparison, and then only if `thorough`.
    """
    note = path.with_suffix(".json")
    try:
        facts = json.loads(note.read_bytes())
        tokens = Tokens(path, int(facts["count"]), int(facts["documents"]), path.with_suffix(".ends"))
        stream, ends = _map_array(path, tokens.count), tokens.read_ends()
        if (stream.shape, stream.dtype, ends.shape) != ((tokens.count,), dtype, (facts["ends"], 2)):
            return None
        touched = False
        for file in (path, tokens.ends_path):
            known = facts["files"][file.suffix]
            if (mtime := file.stat().st_mtime_ns) != known["mtime_ns"]:
                if not thorough or hash_file(file) != known["sha256"]:
                    return None
                known["mtime_ns"], touched = mtime, True
        if touched:
            write_whole(note, json.dumps(facts).encode())
    except (OSError, ValueError, TypeError, KeyError, IndexError, EOFError):
        return None
    return tokens


def _map_array(path: Path, count: int) -> NDArray[Any]:
    return np.asarray(np.load(path, mmap_mode="r" if count else None))  # an empty file cannot be mapped


def _tokenize(
    path: Path, dtype: np.dtype[Any], source: Source, tokenizer: Tokenizer, row: int | None, limit: int | None
) -> None:
    """Write `path`, its `.ends`, and last the note that completes them; files without it are not used. Call it while
    holding the lock of `path`. Until they are complete the files have temporary names, and an error removes them."""
    finals = path, path.with_suffix(".ends")
    parts = [final.with_suffix(f"{final.suffix}.part") for final in finals]
    documents = size = 0
    ends = np.zeros(2, "<i8")  # tokens and bytes so far
    pieces = source.read() if row is None else _keep_first_pieces(source.read())
    try:
        with ExitStack() as stack:
            tokens_file, ends_file = (stack.enter_context(part.open("wb")) for part in parts)
            for file in (tokens_file, ends_file):
                file.write(bytes(HEADER))
            advance = stack.enter_context(show_progress(f"tokenising {source.name}", limit))
            for batch in _encode_pieces(pieces, tokenizer):
                for piece, ids in batch:
                    kept = _finish_piece(piece, ids, tokenizer.end_of_text, row)
                    if kept is None:
                        continue
                    tokens_file.write(kept[0].astype(dtype).tobytes())
                    ends += len(kept[0]), kept[1]
                    ends_file.write(ends.tobytes())
                    documents += piece.last or row is not None
                    size += 1
                    if limit is not None and ends[0] >= limit:
                        break
                advance(int(ends[0]))
                if limit is not None and ends[0] >= limit:
                    break
            _write_header(tokens_file, dtype, (int(ends[0]),))
            _write_header(ends_file, ends.dtype, (size, 2))
    except BaseException:
        for part in parts:
            part.unlink(missing_ok=True)
        raise
    for part, final in zip(parts, finals, strict=True):
        part.replace(final)
    files = {f.suffix: {"sha256": hash_file(f), "mtime_ns": f.stat().st_mtime_ns} for f in finals}
    facts = {"count": int(ends[0]), "documents": documents, "ends": size, "files": files}
    write_whole(path.with_suffix(".json"), json.dumps(facts).encode())


def _write_header(file: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Write the header of a complete .npy file, and wait until the file is on the disk."""
    file.seek(0)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    file.flush()
    os.fsync(file.fileno())


def _encode_pieces(pieces: Iterator[Piece], tokenizer: Tokenizer) -> Iterator[list[tuple[Piece, NDArray[Any]]]]:
    """Yield (piece, its ids [tokens]) in batches of about `BATCH` bytes."""
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += piece.size
        if size >= BATCH:
            yield list(zip(group, tokenizer.encode([piece.text for piece in group]), strict=True))
            group, size = [], 0
    if group:
        yield list(zip(group, tokenizer.encode([piece.text for piece in group]), strict=True))


def _keep_first_pieces(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Yield the first piece of each document, which has more tokens than a row."""
    inside = False
    for piece in pieces:
        if not inside:
            yield piece
        inside = not piece.last


def _finish_piece(piece: Piece, ids: NDArray[Any], end: int | None, row: int | None) -> tuple[NDArray[Any], int] | None:
    """Return the ids of a piece, with the end of text after the last piece of a document, and its bytes. At most `row`
    of them are kept, if it is given, and their bytes are estimated in proportion; None: no token is left to predict."""
    kept, size = ids[:row], piece.size
    if len(kept) < len(ids):
        size = round(size * len(kept) / len(ids))
    elif piece.last and end is not None and (row is None or len(ids) < row):
        kept, size = np.append(ids, end), size + 1
    return (kept, size) if row is None or len(kept) > 1 else None
