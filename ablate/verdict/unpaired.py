"""Two arms whose runs are not paired, since no seed is known of them: Welch's interval of the difference (1947,
Biometrika 34, 28-35), the exact rank test of Mann and Whitney (1947, Ann. Math. Stat. 18, 50-60) in the place of the
sign test, and Fisher's exact test of failures. A look spends its own share of the error: a bound of the union, since
the law of these tests from look to look is not known."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np

from ablate.config.formatting import join_words
from ablate.verdict.comparison import Outcomes, Versus, is_within
from ablate.verdict.failures import ALPHA
from ablate.verdict.intervals import EQUAL, Estimate, find_t_limit, least_sd_of_value
from ablate.verdict.looks import Looks
from ablate.verdict.sequential import LEAST, Array
from ablate.verdict.tails import AGREES, AGREES_ALONE

RANKS = (
    "ranks: the share of all pairs of a run of the arm and one of the baseline in which the arm's value is the higher "
    "one, a tie being a half, with the p-value of the exact test of Mann and Whitney."
)
_EXACT = 100  # values of both arms up to which the rank test is exact


@dataclass(frozen=True)
class Ranks:
    """The rank test of two samples."""

    p: float
    """Two-sided, given the ties."""
    share: float
    """Of the pairs of a run of each, those in which the arm is above; a tie is a half."""
    agrees_at: float
    """The largest p-value that agrees with Welch's interval."""
    agreeing: tuple[float, float] | None
    """The shifts that the test does not reject at `agrees_at` (Hodges & Lehmann 1963, Ann. Math. Stat. 34, 598-611)."""

    @property
    def side(self) -> int:
        """1: more pairs of a run of each have the arm above than below; -1: fewer; 0: equally many."""
        return (self.share > 0.5) - (self.share < 0.5)


@dataclass(frozen=True)
class Apart(Versus):
    """The comparison of two arms whose runs are not paired; `seeds` and `failed` are those of the arm."""

    other_seeds: int = 0
    """Runs of the other."""
    trained: tuple[int, int] = (0, 0)
    """Runs of each that trained."""
    ranks: Ranks | None = None
    """None for fewer than three runs of either that trained."""
    noun: ClassVar[str] = "run"

    @property
    def smallest_p(self) -> float:
        """The smallest p-value that the rank test can have on so few runs."""
        return min(1.0, 2 / math.comb(sum(self.trained), self.trained[0]))

    @property
    def exact_p(self) -> float | None:
        """The p-value of the rank test; None: there is none."""
        return self.ranks.p if self.ranks else None

    def count_seeds(self) -> str:
        """Return '10 runs', or '26 and 6 runs'."""
        same = self.seeds == self.other_seeds
        return super().count_seeds() if same else f"{self.seeds} and {self.other_seeds} runs"

    @property
    def side(self) -> int:
        """The side of 0 that Welch's interval shows, where the ranks agree."""
        side = self.difference.sign if self.difference else 0
        agrees = self.ranks is not None and self.ranks.side == side and self.ranks.p <= self.ranks.agrees_at
        return side if agrees else 0

    @property
    def on_average(self) -> bool:
        """Whether a side is shown: the claim is of the mean."""
        return bool(self.side)

    def mean_lies_within(self, effect: float | None) -> bool:
        """Whether the difference is shown to lie within +-`effect`: its interval does, and the ranks agree."""
        return self.ranks is not None and is_within(self.interval, effect) and is_within(self.ranks.agreeing, effect)

    def lies_within(self, effect: float | None) -> bool:
        """The same."""
        return self.mean_lies_within(effect)

    def describe_runs(self) -> str:
        """Return 'n = 5 and 6', with the runs that failed."""
        ours, others = self.trained
        left_out = (
            f"; {self.left_out} of {self.seeds + self.other_seeds} left out, which failed" if self.left_out else ""
        )
        return f"n = {ours} and {others}{left_out}"

    def describe_ranks(self) -> str:
        """Return 'higher in 80 % of pairs (p = 0.02)': of a run of each."""
        if self.ranks is None:
            return "-"
        return f"higher in {100 * self.ranks.share:.0f} % of pairs (p = {self.ranks.p:.2g})"

    def list_conclusions(self) -> dict[str, Any]:
        """Return what follows from the figures, for JSON."""
        return {**super().list_conclusions(), "paired": False}


@dataclass(frozen=True)
class Samples:
    """The runs of two arms, not paired: the keys of their outcomes, run -> outcome, mean nothing."""

    arm: Outcomes
    other: Outcomes
    looks: Looks | None

    @property
    def ready(self) -> bool:
        """Whether there may be a verdict: a look was made, at three runs of each or more."""
        return self.looks is not None and min(len(self.arm), len(self.other)) >= LEAST

    @cached_property
    def failed(self) -> tuple[int, int]:
        """Failed runs of each."""
        ours, others = (sum(not outcome.trained for outcome in own.values()) for own in (self.arm, self.other))
        return ours, others

    @cached_property
    def smallest_p(self) -> float:
        """The smallest p-value that Fisher's test can have, given how many failed in all."""
        return min(_list_fisher(len(self.arm), len(self.other), sum(self.failed)).values())

    def measure(self, alpha: float, resolution: float = 0.0) -> Apart:
        """Return the figures, with an error of `alpha` over all looks."""
        before, last = (0.0, *(self.looks.share_spent() if self.looks and self.ready else (0.0,)))[-2:]
        level = alpha * (last - before)
        ours, others = (
            [outcome.value for outcome in own.values() if outcome.trained and outcome.value is not None]
            for own in (self.arm, self.other)
        )
        failed, other_failed = self.failed
        sizes = len(self.arm), len(self.other)
        some = failed + other_failed
        few = min(len(ours), len(others)) < LEAST
        alone = alpha >= ALPHA and self.looks is not None and len(self.looks.taken) == 1
        return Apart(
            sizes[0],
            failed,
            other_failed,
            _list_fisher(*sizes, some)[failed] if some else None,
            level,
            bound_difference(ours, others, 0.0 if few else level, least_sd_of_value(resolution)),
            some,
            level,
            other_seeds=sizes[1],
            trained=(len(ours), len(others)),
            ranks=None if few or not self.ready else rank(ours, others, AGREES_ALONE if alone else AGREES),
        )


def bound_difference(
    ours: Sequence[float], others: Sequence[float], level: float, least_sd: float = 0.0
) -> Estimate | None:
    """Return the mean of `ours` less that of `others`, with Welch's interval, which misses the true difference with the
    probability `level`; None where either has no value. No interval for the level 0, for a single value, and for values
    that do not vary."""
    if not ours or not others:
        return None
    n = len(ours) + len(others)
    means = [math.fsum(own) / len(own) for own in (ours, others)]
    mean = means[0] - means[1]
    if min(len(ours), len(others)) < 2:
        return Estimate(mean, None, None, n)
    parts = []
    for own, middle in zip((ours, others), means, strict=True):
        sd = math.sqrt(math.fsum((value - middle) ** 2 for value in own) / (len(own) - 1))
        parts.append((max(sd, least_sd) ** 2 / len(own), len(own) - 1))
    variance = math.fsum(part for part, _ in parts)
    sd = math.sqrt(sum(part * (freedom + 1) for part, freedom in parts))
    if level <= 0 or math.sqrt(variance) <= EQUAL * max(map(abs, means)):
        return Estimate(mean, None, sd, n)
    freedom = variance**2 / math.fsum(part**2 / freedom for part, freedom in parts)
    return Estimate(mean, find_t_limit(level, freedom + 1) * math.sqrt(variance), sd, n)


def rank(ours: Sequence[float], others: Sequence[float], agrees_at: float) -> Ranks:
    """Return the rank test of two samples."""
    apart = np.sort(np.subtract.outer(ours, others), axis=None)
    doubled = int((apart > 0).sum() + (apart >= 0).sum())  # twice U
    m, n = len(ours), len(others)
    distinct = tuple(range(2, 2 * (m + n) + 1, 2))
    # how many of the sorted differences are outside, on either side: the p-value ascends with their number
    outside = bisect_right(range(len(apart) // 2), agrees_at, key=lambda few: _find_rank_p(2 * few, distinct, m))
    return Ranks(
        _find_rank_p(doubled, _double_ranks([*ours, *others]), m),
        doubled / 2 / len(apart),
        agrees_at,
        (float(apart[outside - 1]), float(apart[-outside])) if outside else None,
    )


def _double_ranks(values: Sequence[float]) -> tuple[int, ...]:
    """Return twice the rank of each value, ascending; tied values have their mean rank."""
    ordered = sorted(values)
    first = {value: place for place, value in reversed([*enumerate(ordered)])}
    last = {value: place for place, value in enumerate(ordered)}
    return tuple(first[value] + last[value] + 2 for value in ordered)


def _find_rank_p(doubled: int, ranks: tuple[int, ...], m: int) -> float:
    """Return the probability that U of `m` of the values, doubled, is as far from its mean as `doubled`, where each
    choice of them is equally likely. `ranks`: of all values, doubled."""
    total = len(ranks)
    mean = m * (total - m)  # of the doubled U
    distance = abs(doubled - mean)
    if total > _EXACT:
        from scipy.special import ndtr

        square = sum((place - (total + 1)) ** 2 for place in ranks) / (total - 1)
        return float(min(1.0, 2 * ndtr(-max(distance - 1, 0) / math.sqrt(square * m * (total - m) / total))))
    law = _count_rank_sums(ranks, m)
    us = np.arange(len(law)) - m * (m + 1)
    return float(law[np.abs(us - mean) >= distance].sum() / law.sum())


@lru_cache(maxsize=64)
def _count_rank_sums(ranks: tuple[int, ...], m: int) -> Array:
    """Return [sum]: in how many choices of `m` of the `ranks` they have this sum."""
    ways: Array = np.zeros((m + 1, sum(sorted(ranks)[-m:]) + 1))  # values chosen, sum of their ranks
    ways[0, 0] = 1.0
    for place in ranks:
        ways[1:, place:] += ways[:-1, : ways.shape[1] - place].copy()
    return ways[m].copy()


@lru_cache(maxsize=1024)
def _list_fisher(ours: int, others: int, failed: int) -> dict[int, float]:
    """Return failed runs of the arm -> the two-sided p-value of Fisher's exact test, for `failed` runs in all."""
    ways = {
        k: math.comb(ours, k) * math.comb(others, failed - k)
        for k in range(max(0, failed - others), min(ours, failed) + 1)
    }
    total = sum(ways.values())
    return {k: sum(w for w in ways.values() if w <= way) / total for k, way in ways.items()}


def describe_unpaired(compared: Iterable[Apart]) -> str:
    """Return the sentences on what a claim about unpaired runs rests on."""
    levels = sorted({versus.ranks.agrees_at for versus in compared if versus.ranks}) or [AGREES]
    return (
        "The runs are not paired: intervals are Welch's, whose two variances may differ, and a difference is claimed "
        f"only where the exact rank test of Mann and Whitney agrees, with a p-value of at most "
        f"{join_words(f'{level:g}' for level in levels)}: it supports the interval, and is no test at 5 % itself. Both "
        "assume runs that are independent of each other; the interval, that no runs too rare to show here end far off."
    )
