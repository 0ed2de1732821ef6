"""The loss of a predictor that ignores the input: the better of the training frequencies and the uniform
distribution."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ablate.config.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

MOST = 1 << 22
"""Values of a dataset that are read to count its targets, in a fraction of a second from the disk's cache."""

MOST_STREAMED = 1 << 19
"""The same for a stream, whose values must be tokenised first."""

BLOCKS = 64
"""Number of parts of a larger dataset that are read, spread evenly over it: files are often sorted by topic."""


def choose_blocks(items: int, most: int) -> Iterator[range]:
    """Yield blocks of the numbers below `items`, ascending: all numbers, or at most `most`, spread evenly."""
    size = max(1, most // BLOCKS)
    count = -(-items // size) if items <= most else max(1, most // size)
    starts = range(0, items, size) if items <= most else [items * block // count for block in range(count)]
    for start in starts:
        yield range(start, min(start + size, items))


def count_targets(targets: Iterable[Tensor], classes: int, ignored: int) -> NDArray[np.int64] | None:
    """Return the count of each class in `targets`, of any shapes, without `ignored` targets [classes]; None if a target
    is not a class."""
    counts = np.zeros(classes, np.int64)
    for part in targets:
        if part.dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
            return None
        numbers = part.flatten().long()
        if (numbers < 0).any():
            numbers = numbers[numbers != ignored]
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < classes:
            return None
        counts += torch.bincount(numbers, minlength=classes).numpy()
    return counts


def compute_trivial_loss(train: NDArray[np.int64], val: NDArray[np.int64]) -> float | None:
    """Return the mean loss in nats, on targets with the class counts `val`, of the better of two predictors: the class
    frequencies of `train`, or the uniform distribution. None if there is nothing to count.

    Frequencies are smoothed, since a class without training targets would otherwise have an infinite loss: d of n + d
    counts, with d the number of distinct classes among the n, are shared evenly by all classes (Witten & Bell 1991,
    method C). Where all classes are there, that is Laplace's rule, one more of each; of a vocabulary that is larger
    than the text, adding one would take most of the mass.
    """
    if not train.sum() or not val.sum():
        return None
    distinct, classes = np.count_nonzero(train), len(train)
    shares = (train + distinct / classes) / (train.sum() + distinct)
    loss = float(-(val * np.log(shares)).sum() / val.sum())
    return min(loss, math.log(classes))
