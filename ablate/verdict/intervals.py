"""Means over seeds with their intervals. The distributions are scipy's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

EQUAL = 1e-12  # share of the numbers below which a standard deviation is their rounding


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` seeds with its confidence interval `mean` +- `half_width` (Student's t; 95 % unless another level
    goes with it)."""

    mean: float
    half_width: float | None
    """None for fewer than two seeds, and if no interval exists."""
    sd: float | None
    """Standard deviation over the seeds; None for fewer than two."""
    n: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """The two ends."""
        return None if self.half_width is None else (self.mean - self.half_width, self.mean + self.half_width)

    @property
    def sign(self) -> int:
        """1 if the whole interval is above 0, -1 if it is below, 0 if it contains 0 or there is none."""
        ends = self.interval
        return 0 if ends is None else (ends[0] > 0) - (ends[1] < 0)


@lru_cache(maxsize=65536)
def find_t_limit(level: float, n: float) -> float:
    """Return the limit that |t| over `n` values exceeds with the probability `level`."""
    from scipy.special import stdtrit

    return -float(stdtrit(n - 1, level / 2))


def bound_mean(values: Sequence[float], level: float, least_sd: float = 0.0, scale: float | None = None) -> Estimate:
    """Return the mean of `values`, one for each seed, with the interval that misses the true mean with the probability
    `level`. Raises ValueError for no values.

    There is no interval for fewer than two values, for the level 0, and for values that are all equal, which do not
    show their variation, unless `least_sd` gives a lower bound of their standard deviation. Values that differ only by
    rounding in double precision are equal; `scale` is the magnitude of the rounded numbers, by default the mean.
    """
    n = len(values)
    if not n:
        raise ValueError("a mean of nothing")
    mean = math.fsum(values) / n
    if n < 2:
        return Estimate(mean, None, None, n)
    sd = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    spread = max(sd, least_sd)
    if level <= 0 or spread <= EQUAL * abs(mean if scale is None else scale):
        return Estimate(mean, None, sd, n)
    return Estimate(mean, find_t_limit(level, n) * spread / math.sqrt(n), sd, n)


def least_sd_of_value(resolution: float) -> float:
    """Return the standard deviation due to rounding of a multiple of `resolution`."""
    return resolution / math.sqrt(12)


def least_sd_of_difference(resolution: float) -> float:
    """Return the standard deviation due to rounding of the difference of two values that are multiples of `resolution`,
    such as accuracies on 1/resolution items: each is uniform within +-resolution/2."""
    return resolution / math.sqrt(6)
