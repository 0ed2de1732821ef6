"""Failures of seeds: shares with exact intervals, and two arms compared on the same seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ablate.config.formatting import count_noun
from ablate.verdict.outcomes import Outcome

ALPHA = 0.05
"""The allowed error: over all comparisons of a family, and of the intervals of shares."""


@dataclass(frozen=True)
class FailureShare:
    """The seeds of an arm that failed, and the 95 % interval of the share that fails (Clopper & Pearson 1934)."""

    diverged: int
    stuck: int
    n: int
    """Seeds that ended."""
    low: float
    """If none or all failed, the interval is one-sided, and the other end is 0 or 1."""
    high: float

    @property
    def failed(self) -> int:
        """Seeds that diverged or got stuck."""
        return self.diverged + self.stuck

    def describe_interval(self) -> str:
        """Return '15 to 95 %', or 'up to 63 %, one-sided 95 %' if none failed."""
        if self.failed == 0:
            return f"up to {100 * self.high:.0f} %, one-sided 95 %"
        if self.failed == self.n:
            return f"at least {100 * self.low:.0f} %, one-sided 95 %"
        return f"{100 * self.low:.0f} to {100 * self.high:.0f} %"

    def describe(self) -> str:
        """Return the numbers as a clause: '3 of 5 seeds (2 diverged, 1 stuck; 15 to 95 %)'."""
        if not self.n:
            return "no seed"
        kinds = [f"{count} {word}" for count, word in ((self.diverged, "diverged"), (self.stuck, "stuck")) if count]
        interval = self.describe_interval()
        inside = f"{', '.join(kinds)}; {interval}" if kinds else interval
        return f"{self.failed} of {count_noun(self.n, 'seed')} ({inside})"


def count_failures(outcomes: Iterable[Outcome]) -> FailureShare | None:
    """Return the share of `outcomes` that failed; None for no outcomes."""
    endings = [outcome.ending for outcome in outcomes]
    if not endings:
        return None
    diverged, stuck = endings.count("diverged"), endings.count("stuck")
    return FailureShare(diverged, stuck, len(endings), *bound_share(diverged + stuck, len(endings)))


@lru_cache(maxsize=4096)
def bound_share(failed: int, n: int) -> tuple[float, float]:
    """Return the ends of the exact 95 % interval of a share, given `failed` of `n`; one-sided for none or all: 0 of 3
    has the upper end 1 - 0.05^(1/3) = 63 %."""
    from scipy.special import betaincinv

    if failed == 0:
        return 0.0, 1 - ALPHA ** (1 / n)
    if failed == n:
        return ALPHA ** (1 / n), 1.0
    low, high = betaincinv(failed, n - failed + 1, ALPHA / 2), betaincinv(failed + 1, n - failed, 1 - ALPHA / 2)
    return float(low), float(high)


@lru_cache(maxsize=4096)
def compare_failures(arm_alone: int, baseline_alone: int) -> float:
    """Return the two-sided p-value of the exact sign test (McNemar's): if the arms do not differ, each seed on which
    exactly one of them failed is equally likely to be either's."""
    from scipy.special import bdtr

    n, few = arm_alone + baseline_alone, min(arm_alone, baseline_alone)
    return min(1.0, 2 * float(bdtr(few, n, 0.5)))


def smallest_p(discordant: int) -> float:
    """Return the smallest p-value that the sign test can have on this number of seeds."""
    return min(1.0, 2 * 0.5**discordant)


def count_family(comparisons: int, discordant: Sequence[int], alpha: float = ALPHA) -> int:
    """Return the number of comparisons that share `alpha`: `comparisons` of means, plus the number of comparisons of
    failures that can reach such a level (Tarone 1990, Biometrics 46, 515-522).

    Args:
        comparisons: of means.
        discordant: for each comparison of failures, the number of seeds on which exactly one of the arms failed.
        alpha: the error over all.
    """
    return count_able(comparisons, [smallest_p(d) for d in discordant], alpha)


def count_able(comparisons: int, smallest: Sequence[float], alpha: float = ALPHA) -> int:
    """Return the number of comparisons that share `alpha`: `comparisons`, plus the number of exact tests that can reach
    such a level. `smallest` contains the smallest p-value of each (Tarone 1990)."""
    able = 0
    while sum(p <= alpha / max(comparisons + able, 1) for p in smallest) > able:
        able += 1
    return max(comparisons + able, 1)
