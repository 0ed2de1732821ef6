"""The held-out part: which items, or windows of a text, are for training and which for validation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ablate.config.errors import DataError
from ablate.data.order import draw_permutation


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


def split_windows(
    count: int, seq_len: int, val_fraction: float, split_seed: int, what: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the windows of `count` tokens for (training, validation). Raises DataError for fewer than
    two."""
    size = seq_len + 1
    if count < 2 * size:
        raise DataError(
            f"Too little data: {what} has {count:,} tokens, a window to train on and one to validate on need "
            f"{2 * size:,} with seq_len={seq_len}."
        )
    return split(count // size, val_fraction, split_seed, f"windows of {size} tokens")
