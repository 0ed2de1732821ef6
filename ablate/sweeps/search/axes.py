"""Searched numbers as axes, in steps of the search: the scale on which an arm's settings are near each other, and how
far a range may be extended."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from ablate.config.formatting import is_number
from ablate.sweeps.search.space import Choice, Range

_NEAR = 0.03  # of the length: this close to an end counts as at it


@dataclass(frozen=True)
class Axis:
    """The searched numbers from `low` to `high`, on a logarithmic scale if `log`."""

    low: float
    high: float
    log: bool
    whole: bool
    step: float
    """The distance of two neighbours, on the scale; in a range without a grid, that of so many points."""
    before: int = 0
    """Steps by which it may be extended below `low`."""
    beyond: int = 0
    """Steps by which it may be extended above `high`."""
    closed: tuple[bool, bool] = (True, True)
    """Whether no value is accepted below these steps, and above."""
    is_pair: bool = False
    """Whether it is a list of two values, which consists of its ends."""

    @classmethod
    def of(cls, entry: Range | Sequence[Choice], points: int) -> Axis | None:
        """Return the axis of an entry of a search, ignoring a null among its numbers; None if it has other values, or
        fewer than two. `points`: along a range without a grid."""
        values = entry.ends() if isinstance(entry, Range) else [value for value in entry if value is not None]
        numbers = sorted({value for value in values if is_number(value)})
        if len(numbers) < 2 or len(numbers) < len(values):
            return None
        low, high = numbers[0], numbers[-1]
        log = entry.log if isinstance(entry, Range) else low > 0 and _is_geometric(numbers)
        scaled = [math.log(n) if log else n for n in numbers]
        if isinstance(entry, Range):
            grid = entry.num or (entry.count if entry.whole and not log else None) or max(points, 3)
            step = (scaled[-1] - scaled[0]) / (grid - 1)
        else:
            step = median(b - a for a, b in pairwise(scaled))
        is_pair = not isinstance(entry, Range) and len(numbers) == 2
        return cls(low, high, log, all(isinstance(n, int) for n in numbers), step, is_pair=is_pair)

    def place(self, value: float) -> float:
        """Return the number of steps from the lower end to `value`."""
        scaled = math.log(value) if self.log else value
        return (scaled - (math.log(self.low) if self.log else self.low)) / self.step

    def value(self, place: float) -> int | float:
        """Return the number at a place, rounded as the values of a grid are."""
        scaled = (math.log(self.low) if self.log else self.low) + place * self.step
        number = math.exp(scaled) if self.log else scaled
        return round(number) if self.whole else float(f"{number:.6g}")

    @property
    def length(self) -> float:
        """Steps from one end to the other."""
        return self.place(self.high)

    @property
    def span(self) -> tuple[float, float]:
        """The lowest and the highest place when it is extended."""
        return -float(self.before), self.length + self.beyond

    def find_end(self, place: float, tried: Collection[float] = (), before: int = 0, beyond: int = 0) -> str:
        """Return the end that a place is at, once the axis was extended by so many steps: 'lower', 'upper' or ''. It is
        at an end that is less than a step away if none of the places `tried`, three or more, lies between. It is no end
        if no value beyond it is accepted, or for a list of two values."""
        low, high = -float(before), self.length + beyond
        margin = _NEAR * (high - low)
        if self.is_pair:
            return ""
        lowest, highest = (min(tried), max(tried)) if len({*tried}) > 2 else (low, high)
        if place <= max(low + margin, lowest if lowest < low + 1 else low):
            return "" if before >= self.before and self.closed[0] else "lower"
        is_high = place >= min(high - margin, highest if highest > high - 1 else high)
        return "upper" if is_high and not (beyond >= self.beyond and self.closed[1]) else ""

    def extend(self, most: int, is_accepted: Callable[[Any], bool]) -> Axis:
        """Return the axis with the steps, at most `most`, by which it may be extended at its ends."""
        reach, closed = [], []
        for start, sign in ((0.0, -1), (self.length, 1)):
            steps = 0
            while steps < most and is_accepted(self.value(start + sign * (steps + 1))):
                steps += 1
            last = self.value(start + sign * steps)
            slightly = 1.1**sign * last if self.log else last + sign * 0.01 * (self.high - self.low)
            closed.append(not is_accepted(round(last) + sign if self.whole else slightly))
            reach.append(steps)
        return replace(self, before=reach[0], beyond=reach[1], closed=(closed[0], closed[1]))


def _is_geometric(numbers: Sequence[float]) -> bool:
    """Return whether the ratios of neighbours are more alike than their differences; of two, whether they are far
    apart."""
    ratios, gaps = ([math.log(b / a) for a, b in pairwise(numbers)], [b - a for a, b in pairwise(numbers)])
    if len(numbers) == 2:
        return numbers[1] / numbers[0] >= 4
    return max(ratios) / min(ratios) < max(gaps) / min(gaps)
