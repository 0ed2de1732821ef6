"""The split into training and validation: which items, or which parts of a text, are held out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ablate.config.errors import DataError
from ablate.data.order import draw_below, draw_permutation

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "validate", "val", "dev", "development"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
"""Name of a split, of a folder or in the name of a file, in small letters -> the split, as `datasets` names it."""
_MORE = r"(?:sets?|data|images?|imgs?|pictures?|photos?|samples?|splits?|folder|seg)"
_CALLED = re.compile(rf"[\W\d_]*(?:{_MORE}[\W\d_]*)*({'|'.join(SPLITS)})(?:[\W\d_]*{_MORE})*[\W\d_]*")
"""A name of a split with what is often put before or after it, such as test_set, train2017 and seg_train."""


def find_splits(names: Iterable[str], where: str) -> dict[str, str]:
    """Return train, validation and test -> the one of `names` that is usually called so, in any case; a split without
    such a name is left out. A plain name is preferred to one with another word or a number, such as train_images.
    Raises DataError if several names may be train or validation."""
    found: dict[str, list[str]] = {}
    for name in names:
        if match := _CALLED.fullmatch(name.lower()):
            found.setdefault(SPLITS[match[1]], []).append(name)
    for part, called in found.items():
        called[:] = [name for name in called if name.lower() in SPLITS] or called
        if len(called) > 1 and part != "test":  # which is not read
            raise DataError(
                f"{where} has two splits for {part}, {called[0]} and {called[1]}: keep or name one of them."
            )
    return {part: called[0] for part, called in found.items()}


def split(
    n: int, val_fraction: float, split_seed: int, what: str = "items"
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices in `range(n)` for (training, validation), each ascending and with at least one item.

    Raises DataError for fewer than two items; the message calls them `what`.
    """
    if n < 2:
        raise DataError(f"Too little data: {n} {what}. At least 2 are needed, one for training and one for validation.")
    held_out = min(max(1, round(n * val_fraction)), n - 1)
    order = draw_permutation(n, split_seed, 0)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


MOST_BLOCKS = 16
SMALLEST_BLOCK = 16  # windows
Interval = tuple[int, int]
"""A part of a text: from the first position up to but excluding the second."""


def split_text(
    ends: Sequence[int], val_fraction: float, split_seed: int, window: int
) -> tuple[list[Interval], list[Interval]]:
    """Return the parts of a text for (training, validation), each ascending.

    Blocks spread over the whole text are held out, one at a random position in each of as many equal sections. A border
    of a block moves to the end of a document if one is at most half a block away. Otherwise the block begins or ends
    within a document, and one window of text before or after it is used for neither side.

    Args:
        ends: the end of each document, in any unit; the last is the length of the text.
        val_fraction: approximate share of the text that is held out, at least a window.
        split_seed: seed of the positions.
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
