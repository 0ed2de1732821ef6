"""The statistical power of a number of seeds, before any of them is run."""

from __future__ import annotations

import math
from functools import lru_cache

from ablate.verdict.failures import ALPHA, smallest_p
from ablate.verdict.intervals import find_t_limit
from ablate.verdict.looks import PLANNED_SHARE, Looks, nominal_levels
from ablate.verdict.sequential import LEAST

POWER = 0.8  # with which a difference is to be found
MOST = 10_000  # seeds that anyone may be told to run
PRECISE = 1e-9  # standard deviations within which a difference is found
QUANTILES = 2000  # of the chi-square distribution that the power is averaged over


def find_power(shift: float, n: int, level: float) -> float:
    """Return the probability that a two-sided t-test over `n` pairs rejects at `level` if the true mean difference is
    `shift` standard deviations: the normal probability given the observed standard deviation, averaged over its
    distribution."""
    import numpy as np
    from scipy.special import ndtr

    limit = find_t_limit(level, n) * _find_sd_quantiles(n)
    mean = abs(shift) * math.sqrt(n)
    return float(np.mean(ndtr(mean - limit) + ndtr(-mean - limit)))


@lru_cache(maxsize=256)
def _find_sd_quantiles(n: int):  # type: ignore[no-untyped-def]
    """Return quantiles of the standard deviation of `n` values, as shares of the true one."""
    import numpy as np
    from scipy.special import chdtri

    return np.sqrt(chdtri(n - 1, (np.arange(QUANTILES) + 0.5) / QUANTILES) / (n - 1))


def find_smallest_difference(sd: float, looks: Looks, comparisons: int = 1) -> float | None:
    """Return the smallest true mean difference that is detected with a power of 80 % at the last of `looks`; with
    earlier looks, the power over all of them is slightly higher. None for fewer than three seeds.

    Args:
        sd: standard deviation of the paired differences.
        looks: the looks as planned.
        comparisons: that share 5 %.
    """
    n = looks.sizes[-1]
    if n < LEAST:
        return None
    return sd * _find_shift(n, nominal_levels(looks, ALPHA / comparisons)[-1])


@lru_cache(maxsize=1024)
def _find_shift(n: int, level: float) -> float:
    """Return the true difference in standard deviations that `n` pairs find with a power of 80 % at `level`."""
    low, high = 0.0, 4 * find_t_limit(level, n)
    while high - low > PRECISE:  # the power grows with the difference
        middle = (low + high) / 2
        low, high = (low, middle) if find_power(middle, n, level) >= POWER else (middle, high)
    return high


def count_seeds(sd: float, effect: float, comparisons: int = 1) -> int | None:
    """Return how many seeds with a single look detect a true mean difference of `effect` with a power of 80 %.

    Args:
        sd: standard deviation of the paired differences.
        effect: in the same unit, above 0.
        comparisons: that share 5 %.

    Returns:
        None for more than 10,000; never fewer than three.
    """
    if not (effect > 0 and 0 <= sd < math.inf):
        raise ValueError(f"effect is {effect} and must be above 0; sd is {sd} and must not be below 0")
    if sd == 0:
        return LEAST

    def enough(n: int) -> bool:
        return find_power(effect / sd, n, nominal_levels(Looks((n,), n), ALPHA / comparisons)[0]) >= POWER

    low, high = LEAST - 1, LEAST
    while not enough(high):
        low, high = high, 2 * high
        if low >= MOST:
            return None
    while high - low > 1:  # the power grows with n
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high if high <= MOST else None


def exclude_failures(n: int) -> float:
    """Return the failure rate that `n` seeds exclude if none fails (one-sided, 95 %): 63 % for 3, 45 % for 5."""
    return 1 - ALPHA ** (1 / n)


def count_failures_needed(comparisons: int = 1) -> int:
    """Return on how many seeds only one arm must fail, and never only the other, for the sign test at a single look to
    show that it fails more often: 7 for two comparisons, the mean's and this one.

    Args:
        comparisons: that share 5 %, this one included.
    """
    level, seeds = PLANNED_SHARE * ALPHA / comparisons, 1
    while smallest_p(seeds) > level:
        seeds += 1
    return seeds
