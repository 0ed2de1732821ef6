"""Means over thirds of the depth, as one number for each layer would be too many."""

from __future__ import annotations

import math
from collections.abc import Sequence

THIRDS = ("first third", "middle", "last third")


def average_thirds(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the means of three parts of nearly equal length. Where the layers are no multiple of three, neighbouring
    parts share a layer."""
    n = len(values)
    cuts = [(0, math.ceil(n / 3)), (n // 3, math.ceil(2 * n / 3)), (n - math.ceil(n / 3), n)]
    first, middle, last = (math.fsum(values[low:high]) / (high - low) for low, high in cuts)
    return first, middle, last
