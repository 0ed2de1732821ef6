"""Loss against size: a curve for each arm, a line for each difference, and their intervals over seeds.

Intervals are 95 % bootstrap intervals over the seeds: those of each size are drawn anew with replacement, the same for
all arms, so that differences stay paired. With few seeds a percentile interval is too short (Hesterberg 2015, arXiv
1411.5279, section 5.3): the means are spread by sqrt(n / (n - 1)), and as much as Student's t is wider than the normal
distribution, with the degrees of freedom of the smallest and the largest size, on which a trend hangs. The intervals
speak of the seeds, not of whether the curve is the right one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BySeed = Mapping[int, float]
FLOOR, STRAIGHT = "a + b N^-c", "b N^-c"
_CONFIDENCE = 0.95
_EXPONENTS = np.geomspace(0.01, 3, 300)


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval; the ends are None where there is one seed for each size."""

    value: float
    low: float | None
    high: float | None

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Fit:
    """A function of the number of parameters, fitted to the means over seeds and to each resample of them."""

    form: str
    coefficients: Floats
    """[1 + draws, number of coefficients]; the first row is that of the means."""
    unit: float
    """The number of parameters of the smallest size."""
    sure: bool
    """Whether there are seeds enough for an interval."""

    def at(self, parameters: float) -> Interval:
        """Return the value at a size."""
        x, c = parameters / self.unit, self.coefficients
        if self.form == FLOOR:
            values = c[:, 0] + c[:, 1] * x ** -c[:, 2]
        elif self.form == STRAIGHT:
            values = np.exp(c[:, 0] - c[:, 1] * math.log(x))
        else:
            values = c[:, 0] + c[:, 1] * math.log10(x)
        return find_interval(values, self.sure)


@dataclass(frozen=True)
class Trend(Fit):
    """The difference of two arms against size: a straight line in the logarithm of the number of parameters."""

    @property
    def slope(self) -> Interval:
        """Change of the difference for ten times the parameters."""
        return find_interval(self.coefficients[:, 1], self.sure)

    def describe(self, parameters: float) -> str:
        """Return whether the size of the difference at `parameters` on the line "grows", "shrinks" or "stays"."""
        if not self.slope.excludes_zero:
            return "stays"
        return "grows" if self.slope.value * self.at(parameters).value > 0 else "shrinks"


def find_interval(values: Floats, sure: bool) -> Interval:
    """Return the interval of a value and its resamples."""
    if not sure:
        return Interval(float(values[0]), None, None)
    low, high = np.quantile(values[1:], [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return Interval(float(values[0]), float(low), float(high))


@dataclass(frozen=True)
class Resampler:
    """Draws the seeds of each size anew."""

    parameters: Sequence[float]
    """Of each size, ascending."""
    seeds: Sequence[Sequence[int]]
    """Of each size: all on which some arm was trained to the end."""
    draws: int = 4000
    """Resamples."""
    _counts: list[Floats] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(0)
        counts = [generator.multinomial(len(s), [1 / len(s)] * len(s), self.draws).astype(float) for s in self.seeds]
        object.__setattr__(self, "_counts", counts)

    def fit_curve(self, losses: Sequence[BySeed]) -> Fit:
        """Return the loss of one arm against size: with a floor from four sizes on, else a straight line in the
        logarithms."""
        kept, means, sure = self._resample_means(losses)
        x = np.array([self.parameters[k] for k in kept]) / self.parameters[kept[0]]
        form = FLOOR if len(x) > 3 else STRAIGHT
        coefficients = _fit_with_floor(x, means) if form == FLOOR else _fit_line(-np.log(x), np.log(means))
        return Fit(form, coefficients, self.parameters[kept[0]], sure)

    def fit_trend(self, losses: Sequence[BySeed], baseline: Sequence[BySeed]) -> Trend:
        """Return the difference of an arm to the baseline, on the seeds that both have, against size."""
        pairs = [{s: a[s] - b[s] for s in a if s in b} for a, b in zip(losses, baseline, strict=True)]
        kept, means, sure = self._resample_means(pairs)
        x = np.array([self.parameters[k] for k in kept]) / self.parameters[kept[0]]
        return Trend("difference", _fit_line(np.log10(x), means), self.parameters[kept[0]], sure)

    def _resample_means(self, values: Sequence[BySeed]) -> tuple[list[int], Floats, bool]:
        """Return the sizes that have values, the means there, [1 + draws, sizes], spread as seeds allow, and whether
        they allow an interval. Raises ValueError for fewer than two sizes."""
        kept = [k for k, by_seed in enumerate(values) if by_seed]
        if len(kept) < 2:
            raise ValueError("a trend needs two sizes")
        wider = _widening_factor(len(values[kept[0]]) + len(values[kept[-1]]) - 2)
        columns = []
        for k in kept:
            chosen = [i for i, seed in enumerate(self.seeds[k]) if seed in values[k]]
            v = np.array([values[k][self.seeds[k][i]] for i in chosen])
            counts, mean, n = self._counts[k][:, chosen], v.mean(), len(v)
            total = counts.sum(axis=1)
            drawn = np.where(total > 0, counts @ v / np.maximum(total, 1), mean)
            spread = wider * math.sqrt(n / max(1, n - 1))
            columns.append(np.concatenate([[mean], mean + spread * (drawn - mean)]))
        return kept, np.stack(columns, axis=1), wider > 0


def _widening_factor(freedom: int) -> float:
    """Return how much wider Student's t is than the normal distribution; 0 without a degree of freedom."""
    from scipy import stats

    upper = (1 + _CONFIDENCE) / 2
    return float(stats.t.ppf(upper, freedom) / stats.norm.ppf(upper)) if freedom else 0.0


def _fit_line(x: Floats, y: Floats) -> Floats:
    """Return [intercept, slope] of least squares for each row of `y` [rows, sizes]."""
    design = np.stack([np.ones_like(x), x], axis=1)
    return y @ np.linalg.pinv(design).T


def _fit_with_floor(x: Floats, y: Floats) -> Floats:
    """Return [a, b, c] of the least squares fit of a + b x^-c, with a and b of at least 0, for each row of `y`: for
    each exponent of a fine grid a and b are known in closed form."""
    best = np.full(len(y), np.inf)
    coefficients = np.zeros((len(y), 3))
    for c in _EXPONENTS:
        z = x**-c
        centred = z - z.mean()
        b = np.maximum(y @ centred / (centred @ centred), 0)
        a = y.mean(axis=1) - b * z.mean()
        b = np.where(a < 0, y @ z / (z @ z), b)
        a = np.maximum(a, 0)
        error = ((y - a[:, None] - b[:, None] * z) ** 2).sum(axis=1)
        better = error < best
        best = np.where(better, error, best)
        coefficients[better] = np.stack([a, b, np.full_like(a, c)], axis=1)[better]
    return coefficients
