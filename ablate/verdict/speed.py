"""How soon an arm reaches a value that the baseline has: where the mean of its curves over seeds comes to it and stays.

At each validation the arm is compared with what is to be reached by the paired t-test of the verdict, at the verdict's
own level, from the end of its training backwards (a fixed sequence: Westfall & Krishen 2001, Journal of Statistical
Planning and Inference 99, 25-40). The first step is the verdict itself, and each further one is made only if the step
before claimed something, so that all of them need no error beside the verdict's. The interval is that of Fieller (1954,
Journal of the Royal Statistical Society B 16, 175-185): the places that the tests do not rule out.

The first time at which a noisy curve touches a value comes too early, the more so the more validations there are; of
equal arms most would be called faster. A mean over the seeds that reach it leaves out the worst. The mean curve has
neither fault: a seed that never gets there stays in it with its losses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablate.verdict.failures import ALPHA
from ablate.verdict.intervals import bound_mean
from ablate.verdict.tails import count_outside

Curve = Mapping[float, float]
"""Updates, or another cost -> the objective at a validation."""


@dataclass(frozen=True)
class Reach:
    """The place in its training at which an arm reaches a value and stays there, in the unit of its curves."""

    at: float | None
    """Where the mean curve does; None: not before its end."""
    low: float
    """It is shown not to do so before; 0: it may do so before the first validation."""
    high: float | None
    """It is shown to do so until then; None: not before its end."""


def find_reach(
    curves: Sequence[Curve], goals: Sequence[float], level: float, *, maximize: bool = False, least_sd: float = 0.0
) -> Reach | None:
    """Return where the mean of `curves` reaches the mean of `goals`, one of each for each seed, and stays; with an
    interval that misses the true place with a probability of at most `level`. Between validations it is interpolated.
    None for no seeds, and for curves without two common validations that are finite.

    Args:
        curves: of the arm, at the same validations.
        goals: the values to be reached.
        level: of the test at each validation; 0: there is no interval.
        maximize: whether a higher value is better.
        least_sd: the smallest possible standard deviation of a difference, of rounded values.
    """
    common = sorted(set(curves[0]).intersection(*curves[1:])) if curves else []
    places = [place for place in common if all(math.isfinite(curve[place]) for curve in curves)]
    if len(places) < 2:
        return None
    sign, scale = -1 if maximize else 1, max(map(abs, goals))
    above: list[tuple[float, float, float]] = []  # mean distance to the goal, and its two ends
    for place in places:
        gaps = [sign * (curve[place] - goal) for curve, goal in zip(curves, goals, strict=True)]
        found = bound_mean(gaps, level, least_sd, scale)
        above.append((found.mean, *(found.interval or (-math.inf, math.inf))))
    means, lows, highs = zip(*above, strict=True)
    first = next((i for i, low in enumerate(lows) if low <= 0), None)
    low = places[-1] if first is None else 0.0 if not first else _cross(places, lows, first)
    return Reach(_find_last(places, means), low, _find_last(places, highs))


def _find_last(places: Sequence[float], values: Sequence[float]) -> float | None:
    """Return where `values` fall below 0 for the last time; None if they end at 0 or above."""
    if values[-1] >= 0:
        return None
    last = next((i for i in range(len(values) - 1, -1, -1) if values[i] >= 0), None)
    return places[0] if last is None else _cross(places, values, last + 1)


def _cross(places: Sequence[float], values: Sequence[float], i: int) -> float:
    """Return where the line from the place before the `i`-th to that one is 0. An end that is not known is infinite,
    and then it is the other of the two."""
    (left, before), (right, after) = (places[i - 1], values[i - 1]), (places[i], values[i])
    if math.isinf(before) or math.isinf(after):
        return right if math.isinf(before) else left
    return left + (right - left) * before / (before - after)


def find_time(curve: Curve, goal: float, maximize: bool = False) -> float | None:
    """Return where one curve reaches `goal` and stays; None if it does not."""
    sign, places = -1 if maximize else 1, sorted(curve)
    # at the goal counts as reached
    return _find_last(places, [sign * (curve[place] - goal) - math.ulp(goal) for place in places]) if places else None


@dataclass(frozen=True)
class Median:
    """The median over seeds with its exact 95 % interval; infinite: more than half of them do not reach it."""

    value: float
    low: float | None
    """None for fewer than six seeds, which have no such interval."""
    high: float | None


def bound_median(lowest: Sequence[float], highest: Sequence[float]) -> Median | None:
    """Return the median of values that are known to lie between `lowest` and `highest`, one of each for each seed, with
    the interval between two of them in order that misses the true median with a probability of at most 5 %, whatever
    the distribution (the sign test's: Conover 1999, Practical Nonparametric Statistics, 3.2). A seed on which the arm
    failed, or never reached the goal, is infinite and stays: nothing but its rank is needed. None for no seeds."""
    n = len(lowest)
    if not n:
        return None
    below, above = sorted(lowest), sorted(highest)
    value = above[(n - 1) // 2] if n % 2 else (above[n // 2 - 1] + above[n // 2]) / 2
    cut = count_outside(n, ALPHA)
    return Median(value, below[cut - 1] if cut else None, above[n - cut] if cut else None)


@dataclass(frozen=True)
class Share:
    """A cost of the arm over that of the baseline, with its interval; the ends are None as those of `Reach`."""

    value: float | None
    low: float
    high: float | None

    @property
    def is_faster(self) -> bool:
        """Whether the whole interval is below 1."""
        return self.high is not None and self.high < 1


def is_behind(gaps: Sequence[float], level: float, maximize: bool = False) -> bool:
    """Return whether the baseline is shown to be behind at the arm's own place, from the differences there of the
    baseline to the arm, one for each seed. A place that was found on noisy curves favours one of the two, and the same
    comparison from the other's place favours the other: both must claim the same."""
    ends = bound_mean([(-1 if maximize else 1) * gap for gap in gaps], level).interval if gaps else None
    return ends is not None and ends[0] > 0
