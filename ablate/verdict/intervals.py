"""Means, paired differences and what they can show, over seeds. The distributions are scipy's."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

Seed = TypeVar("Seed", bound=Hashable)
CONFIDENCE = 0.95
POWER = 0.8  # with which a difference is to be found, where it is asked how many seeds that takes
MOST = 10_000  # seeds that anyone may be told to run
EQUAL = 1e-12  # share of the numbers below which a standard deviation is their rounding


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` seeds with its confidence interval `mean` +- `half_width` (Student's t; 95 % unless another level
    goes with it)."""

    mean: float
    half_width: float | None
    """None for fewer than two seeds, and where there can be no interval."""
    sd: float | None
    """Standard deviation over the seeds; None for fewer than two."""
    n: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """The two ends."""
        return None if self.half_width is None else (self.mean - self.half_width, self.mean + self.half_width)


@dataclass(frozen=True)
class Difference:
    """The mean of the differences of two arms on the same seeds."""

    estimate: Estimate
    p: float | None
    """Of a two-sided paired t-test; None for fewer than two seeds."""
    adjusted_p: float | None = None
    """The same, corrected for the number of comparisons (Holm 1979)."""

    @property
    def shown(self) -> bool:
        """Whether it is a difference that these seeds show, at 5 % over all comparisons."""
        return self.adjusted_p is not None and self.adjusted_p < 1 - CONFIDENCE


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and interval of `values`, one for each seed. Raises ValueError for none."""
    n = len(values)
    if not n:
        raise ValueError("a mean of nothing")
    mean = math.fsum(values) / n
    if n < 2:
        return Estimate(mean, None, None, n)
    from scipy import stats

    sd = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    return Estimate(mean, float(stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1)) * sd / math.sqrt(n), sd, n)


@lru_cache(maxsize=65536)
def find_t_limit(level: float, n: int) -> float:
    """Return what |t| over `n` values exceeds with the probability `level`."""
    from scipy.special import stdtrit

    return -float(stdtrit(n - 1, level / 2))


def bound_mean(values: Sequence[float], level: float, least_sd: float = 0.0, scale: float | None = None) -> Estimate:
    """Return the mean of `values`, one for each seed, with the interval that leaves out the true mean with the
    probability `level`. Raises ValueError for no values.

    There is no interval for fewer than two values, for the level 0, and for values that are all equal, which show
    nothing of how they vary, unless `least_sd` says what they vary by at least. Equal is what differs by rounding in
    double precision; `scale` is the size of the numbers that were rounded, the mean if it isn't given.
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
    """Return the standard deviation that rounding alone gives to a multiple of `resolution`."""
    return resolution / math.sqrt(12)


def least_sd_of_difference(resolution: float) -> float:
    """Return the standard deviation that rounding alone gives to the difference of two values that are multiples of
    `resolution`, such as accuracies on 1/resolution items: each is uniform within +-resolution/2."""
    return resolution / math.sqrt(6)


def estimate_difference(arm: Mapping[Seed, float], baseline: Mapping[Seed, float]) -> Difference | None:
    """`arm` less `baseline` (seed -> value) over the seeds that both have; None without a common seed."""
    pairs = [arm[seed] - baseline[seed] for seed in arm if seed in baseline]
    if not pairs:
        return None
    paired = estimate(pairs)
    if paired.sd is None:
        return Difference(paired, None)
    if paired.sd == 0:
        return Difference(paired, 1.0 if paired.mean == 0 else 0.0)
    from scipy import stats

    return Difference(paired, float(stats.ttest_1samp(pairs, 0.0).pvalue))


def correct_p_values(differences: Mapping[str, Difference | None]) -> dict[str, Difference | None]:
    """The same differences with their p-values corrected for their number (Holm's step-down procedure)."""
    tested = sorted((d.p, name) for name, d in differences.items() if d is not None and d.p is not None)
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, (p, name) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * p))
        adjusted[name] = largest
    return {
        name: d if d is None or name not in adjusted else Difference(d.estimate, d.p, adjusted[name])
        for name, d in differences.items()
    }


def count_seeds_needed(sd: float, effect: float, comparisons: int = 1) -> int | None:
    """How many seeds a paired t-test needs to find a true mean difference of `effect` with a power of 80 %, where the
    differences have the standard deviation `sd` and the level of 5 % is shared by `comparisons`.

    None for an effect of 0 or more than 10,000 seeds.
    """
    if effect == 0 or not math.isfinite(sd):
        return None
    if sd == 0:
        return 2
    from scipy import stats

    level = (1 - CONFIDENCE) / comparisons

    def power(n: int) -> float:
        limit = stats.t.ppf(1 - level / 2, n - 1)
        shift = abs(effect) / sd * math.sqrt(n)
        return float(stats.nct.sf(limit, n - 1, shift) + stats.nct.cdf(-limit, n - 1, shift))

    low, high = 1, 2
    while not power(high) >= POWER:
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high - low > 1:  # the power grows with n
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high
