"""The range of a figure's axis, and of the values on it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np

from ablate.config.formatting import clip, format_uncertain
from ablate.verdict.intervals import Estimate
from ablate.verdict.outcomes import Outcome

Range: TypeAlias = tuple[float, float]

_ROOM = 1.5
"""How far an interval may extend an axis beyond the values: in multiples of the values' range, and of the intervals'
median width."""
_PAD = 0.06


def choose_range(values: Iterable[float], intervals: Iterable[Range] = (), *also: float) -> Range:
    """Return the range of an axis that shows all `values` and `also`, and the `intervals` up to one and a half times
    the values' range, or the median width of the intervals, beyond them: one wide interval must not compress all
    others."""
    pairs = list(intervals)
    shown, ends = [*values, *also], [end for pair in pairs for end in pair]
    if not shown:
        shown = ends or [0.0, 1.0]
    low, high = min(shown), max(shown)
    span = (high - low) or (max(ends) - min(ends) if ends else 0.0) or 0.02 * abs(high) or 0.02
    room = _ROOM * max(span, statistics.median([right - left for left, right in pairs] or [0.0]))
    left, right = low - room, high + room
    for end in ends:
        low, high = min(low, max(end, left)), max(high, min(end, right))
    pad = _PAD * ((high - low) or span)
    return low - pad, high + pad


def choose_view(values: Iterable[float], sign: int) -> Range:
    """Return (low, high) of `values` without the outliers on the bad side.

    Outliers are more than two and a half times as far from the best as three quarters of the values are. `sign` is 1
    where less is better.
    """
    scores = sorted(sign * value for value in values)
    best, worst = scores[0], scores[-1]
    limit = best + 2.5 * float(np.quantile(scores, 0.75) - best)
    inside = worst if worst <= limit or limit == best else max(score for score in scores if score <= limit)
    low, high = sorted((sign * best, sign * inside))
    return low, high


def find_ends(estimate: Estimate, bounds: Range) -> Range | None:
    """Return the interval of a mean clipped to possible values; None if it has none. It always contains the mean."""
    if estimate.interval is None:
        return None
    low, high = clip(*estimate.interval, bounds)
    return min(low, estimate.mean), max(high, estimate.mean)


def list_values(outcomes: Mapping[int, Outcome]) -> dict[int, float]:
    """Return seed -> value, of the seeds that trained."""
    return {seed: o.value for seed, o in outcomes.items() if o.trained and o.value is not None}


def describe_mean(name: str, estimate: Estimate, bounds: Range, sign: bool = False) -> str:
    """Return 'pre: 2.13 ± 0.02 (n = 5)'."""
    text = format_uncertain(estimate.mean, estimate.half_width, sign=sign, bounds=bounds)
    return f"{name}: {text} (n = {estimate.n})"
