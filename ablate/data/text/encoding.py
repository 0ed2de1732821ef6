"""Pieces of text to token ids, in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.data.text.documents import Piece
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
