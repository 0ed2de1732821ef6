"""Trends with size: of the difference of two arms from the smallest to the largest size, and of the share of failed
seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from ablate.addons.scaling.fits import Interval, varies
from ablate.verdict.sequential import LEAST

Word = Literal["grows", "shrinks", "changes", "stays", "not shown", "figures"]
_NODES = np.linspace(-12, 12, 481)


@dataclass(frozen=True)
class Trend:
    """The change of a difference from the smallest size to the largest, both as measured. It uses no curve, so that its
    error does not depend on the losses in between."""

    sizes: tuple[int, int]
    """The indices of the smallest and the largest size."""
    ends: tuple[float, float]
    """The mean difference at both."""
    pairs: tuple[int, int]
    """Seeds on which both arms trained, at both."""
    change: Interval
    """The change of the difference."""
    total: Interval
    """The sum of the differences at both sizes: its sign and that of the change determine which is larger."""
    effect: float | None = None
    """The smallest change that matters."""

    @property
    def word(self) -> Word:
        """The kind of trend. The magnitude of the difference grows if the change and the total have the same sign, as
        L^2 - S^2 = (L - S) (L + S): both must be shown, and neither needs a correction for the other (an
        intersection-union test). "stays" is an equivalence test against `effect`."""
        if self.change.low is None:
            return "figures"
        if self.change.lies_within(self.effect):
            return "stays"
        if not self.change.side:
            return "not shown"
        if not self.total.side:
            return "changes"
        return "grows" if self.change.side == self.total.side else "shrinks"


def find_trend(
    differences: Sequence[Sequence[float]], level: float, effect: float | None = None, scale: float = 1.0
) -> Trend | None:
    """Return the change of a difference with size; None if fewer than two sizes have a pair of seeds.

    Args:
        differences: of each size, the smallest first, those of the seeds on which both arms trained.
        level: the error of the claim; 0: there is none.
        effect: the smallest change that matters; None: nothing is claimed to stay.
        scale: the magnitude of the subtracted numbers.
    """
    enough = [k for k, pairs in enumerate(differences) if len(pairs) >= LEAST]
    some = [k for k, pairs in enumerate(differences) if pairs]
    if len(some) < 2:
        return None
    if len(enough) < 2:
        enough, level = some, 0.0
    small, large = enough[0], enough[-1]
    first, last = differences[small], differences[large]
    change, total = (bound_sum(last, first, sign, level, scale) for sign in (-1, 1))
    ends = float(np.mean(first)), float(np.mean(last))
    return Trend((small, large), ends, (len(first), len(last)), change, total, effect)


def bound_sum(first: Sequence[float], second: Sequence[float], sign: int, level: float, scale: float = 1.0) -> Interval:
    """Return mean(`first`) + `sign` mean(`second`) with Behrens and Fisher's interval, which does not assume equal
    variances and misses the true value with a probability of at most `level` (Robinson 1976, Annals of Statistics 4,
    963-971). None for the level 0, and if either does not vary beyond rounding of numbers as large as `scale`."""
    value = float(np.mean(first) + sign * np.mean(second))
    if level <= 0 or min(len(first), len(second)) < 2 or not (varies(first, scale) and varies(second, scale)):
        return Interval(value, None, None)
    errors = [float(np.std(v, ddof=1)) / math.sqrt(len(v)) for v in (first, second)]
    size = math.hypot(*errors)
    half = size * find_limit(level, (len(first) - 1, len(second) - 1), errors[0] / size)
    return Interval(value, value - half, value + half)


@lru_cache(maxsize=4096)
def find_limit(level: float, freedom: tuple[int, int], sine: float) -> float:
    """Return the limit that |sine T1 + cosine T2| exceeds with the probability `level`, for independent Student's T."""
    from scipy.optimize import brentq
    from scipy.special import gammaln, stdtr, stdtrit

    shares = sorted(zip((sine, math.sqrt(max(0.0, 1 - sine**2))), freedom, strict=True))
    (small, n), (large, other) = shares  # summed over the one that has the smaller share, so that the other is smooth
    if small < 1e-6:
        return -float(stdtrit(other, level / 2))
    t = np.sinh(_NODES)
    log_density = gammaln((n + 1) / 2) - gammaln(n / 2) - 0.5 * math.log(n * math.pi)
    weight = np.exp(log_density - (n + 1) / 2 * np.log1p(t**2 / n)) * np.cosh(_NODES) * (_NODES[1] - _NODES[0])

    def excess(limit: float) -> float:
        return 2 * float(weight @ stdtr(other, (small * t - limit) / large)) - level

    high = 2.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-7))


@dataclass(frozen=True)
class FailureTrend:
    """Whether the share of failed seeds changes with size: the exact test of Cochran and Armitage, whose scores are the
    indices of the sizes, given the total number of failures."""

    p: float | None
    """Two-sided p-value; None if no seed or all failed, or there is one size."""
    smallest_p: float
    """Smallest possible p-value with as many failures; 1 if there is no test."""
    rises: bool
    """Whether more of the larger sizes' seeds failed than expected."""


def find_failure_trend(failed: Sequence[int], seeds: Sequence[int]) -> FailureTrend:
    """Return how the share of failures changes with size.

    Args:
        failed: of each size, the smallest first, the seeds that failed.
        seeds: of each size, the seeds that ended.
    """
    every, lost = sum(seeds), sum(failed)
    ways = {(0, 0): 1}  # (failures so far, sum of their scores) -> number of ways
    for score, n in enumerate(seeds):
        further: dict[tuple[int, int], int] = {}
        for (count, total), number in ways.items():
            for more in range(min(n, lost - count) + 1):
                key = (count + more, total + score * more)
                further[key] = further.get(key, 0) + number * math.comb(n, more)
        ways = further
    expected = lost * sum(score * n for score, n in enumerate(seeds))  # every times the mean
    law = {every * total - expected: number for (count, total), number in ways.items() if count == lost}
    seen = every * sum(score * f for score, f in enumerate(failed)) - expected
    if len(law) < 2:
        return FailureTrend(None, 1.0, False)
    whole, farthest = math.comb(every, lost), max(map(abs, law))

    def tail(distance: int) -> float:
        return sum(number for at, number in law.items() if abs(at) >= distance) / whole

    return FailureTrend(tail(abs(seen)), tail(farthest), seen > 0)
