"""The held-out part: which items or which parts of a text are for training and which for validation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ablate.config.errors import DataError
from ablate.data.order import draw_below, draw_permutation


def split(
    n: int, val_fraction: float, split_seed: int, what: str = "items"
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices in `range(n)` for (training, validation), each ascending and with at least one item.

    Raises DataError for fewer than two items; `what` is what the message calls them.
    """
    if n < 2:
        raise DataError(f"Too little data: {n} {what}. At least 2 are needed, one to train on and one to validate on.")
    held_out = min(max(1, round(n * val_fraction)), n - 1)
    order = draw_permutation(n, split_seed, 0)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


MOST_BLOCKS = 16
SMALLEST_BLOCK = 16  # windows
Interval = tuple[int, int]
"""A part of a text: from the first position on, up to the second."""


def split_text(
    ends: Sequence[int], val_fraction: float, split_seed: int, window: int
) -> tuple[list[Interval], list[Interval]]:
    """Return the parts of a text for (training, validation), each ascending.

    Blocks spread over the whole text are held out, one in each of as many equal stretches, at a random place there. A
    border of a block moves to the end of a document that is at most half a block away. Where there is none, a block
    begins and ends within a document, and a window in front of it and behind it is on no side.

    Args:
        ends: where each document ends, in any unit; the last is the length of the text.
        val_fraction: about the part of it that is held out, at least a window.
        split_seed: fixes the places.
        window: the length of a window.
    """
    length = ends[-1]
    target = max(window, round(length * val_fraction))
    blocks = min(max(1, target // (SMALLEST_BLOCK * window)), MOST_BLOCKS)
    size = min(target, length) // blocks
    borders = np.array([0, *ends])

    def move(place: int) -> int:
        nearest = int(borders[np.abs(borders - place).argmin()])
        return nearest if abs(nearest - place) <= size // 2 else place

    held_out: list[Interval] = []
    for block in range(blocks):
        low, high = (length * i // blocks for i in (block, block + 1))
        start = low + draw_below(high - low - size + 1, split_seed, block)
        first = max(move(start), held_out[-1][1] if held_out else 0)
        last = move(start + size)
        held_out.append((first, last if last > first else min(first + size, length)))
    kept: list[Interval] = []
    at = 0
    for first, last in held_out:
        kept.append((at, first if first in borders else first - window))
        at = last if last in borders else last + window
    kept.append((at, length))
    return [(first, last) for first, last in kept if first < last], held_out


def split_windows(
    count: int, seq_len: int, val_fraction: float, split_seed: int, what: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the windows of `count` tokens for (training, validation), held out at random among each
    other. Raises DataError for fewer than two."""
    size = seq_len + 1
    if count < 2 * size:
        raise DataError(
            f"Too little data: {what} has {count:,} tokens, a window to train on and one to validate on need "
            f"{2 * size:,} with seq_len={seq_len}."
        )
    return split(count // size, val_fraction, split_seed, f"windows of {size} tokens")
