"""Loss against size: a curve with a floor for each arm, their difference, and the intervals of both over seeds.

Intervals are a parametric bootstrap of the whole fit over the seeds: at each size the mean of n seeds is drawn from
Student's t with n - 1 degrees of freedom about the mean that was seen, and the curve is fitted to each draw. The draws
belong to the seeds, so that two arms on the same seeds are drawn alike and their difference stays paired. This is
Behrens and Fisher's way with means of unequal variance (generalised fiducial inference: Hannig 2009, Statistica Sinica
19, 491-544): at one size it is the t interval, and no size is taken to vary as much as another, as unstable trainings
do not. Resampling three seeds with replacement instead has too short tails (Hesterberg 2015, arXiv 1411.5279). The
intervals speak of the seeds, not of whether the curve is the right one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ablate.verdict.intervals import EQUAL
from ablate.verdict.sequential import LEAST

Floats = NDArray[np.float64]
BySeed = Mapping[int, float]
FORM = "a + b N^-c"
LEAST_SIZES = 4
"""Minimum number of sizes for a curve of three coefficients; three sizes would fit any three losses."""
_EXPONENTS = np.geomspace(0.01, 3, 300)


@dataclass(frozen=True)
class Interval:
    """A value with its interval; the ends are None if there are too few seeds for an interval."""

    value: float
    low: float | None
    high: float | None

    @property
    def side(self) -> int:
        """1: the interval lies above 0; -1: below; 0: neither, or there is none."""
        return 0 if self.low is None or self.high is None else (self.low > 0) - (self.high < 0)

    def lies_within(self, effect: float | None) -> bool:
        """Return whether the whole interval lies within +-`effect`."""
        known = effect is not None and self.low is not None and self.high is not None
        return known and -effect < self.low and self.high < effect  # type: ignore[operator]


@dataclass(frozen=True)
class Curve:
    """The loss of one arm against the number of parameters, fitted to its means over seeds and to each draw of them."""

    coefficients: Floats
    """[1 + draws, 3]: a, b, c; the first row is that of the means."""
    sizes: tuple[float, ...]
    """The numbers of parameters that it was fitted to, ascending."""
    level: float
    """The error of its intervals; 0: there are none."""

    @property
    def has_floor(self) -> bool:
        """Whether the losses flatten enough to estimate a floor; otherwise larger sizes cannot be predicted."""
        return bool(self.coefficients[0, 0] > 0)

    def reaches(self, parameters: float) -> bool:
        """Return whether the curve is valid at a size: within its sizes, and beyond them if it has a floor."""
        return self.has_floor or self.sizes[0] <= parameters <= self.sizes[-1]

    def draw(self, parameters: float) -> Floats:
        """Return the value at a size, [1 + draws]."""
        a, b, c = self.coefficients.T
        value: Floats = a + b * (parameters / self.sizes[0]) ** -c
        return value

    def at(self, parameters: float) -> Interval:
        """Return the value at a size with its interval."""
        return find_interval(self.draw(parameters), self.level)


@dataclass(frozen=True)
class Gap:
    """The difference of two arms against size: the difference of their curves, fitted to the same seeds."""

    arm: Curve
    baseline: Curve

    @property
    def level(self) -> float:
        """The error of its intervals; 0: there are none."""
        return min(self.arm.level, self.baseline.level)

    @property
    def has_floor(self) -> bool:
        """Whether both curves have one."""
        return self.arm.has_floor and self.baseline.has_floor

    def reaches(self, parameters: float) -> bool:
        """Return whether both curves are valid at a size."""
        return self.arm.reaches(parameters) and self.baseline.reaches(parameters)

    def draw(self, parameters: float) -> Floats:
        """Return the difference at a size, [1 + draws]."""
        return self.arm.draw(parameters) - self.baseline.draw(parameters)

    def at(self, parameters: float) -> Interval:
        """Return the difference at a size with its interval."""
        return find_interval(self.draw(parameters), self.level)


def find_interval(values: Floats, level: float) -> Interval:
    """Return the interval of a value, from its draws, that misses the true value with the probability `level`."""
    if level <= 0:
        return Interval(float(values[0]), None, None)
    low, high = np.quantile(values[1:], [level / 2, 1 - level / 2])
    return Interval(float(values[0]), float(low), float(high))


@dataclass(frozen=True)
class SeedDraws:
    """Draws the means of each size, the same for every arm that was trained on the same seeds."""

    draws: int = 4000
    _kept: dict[tuple[int, int, int], Floats] = field(default_factory=dict, repr=False)

    def draw_mean(self, size: int, values: BySeed) -> Floats:
        """Return the mean of `values` and its draws, [1 + draws], at the `size`-th size. The draws of the difference of
        two arms on the same seeds are the difference of their draws."""
        v = np.array(list(values.values()))
        n, mean = len(v), v.mean()
        if n < 2:
            return np.full(1 + self.draws, mean)
        normal = np.stack([self._draw_normal(size, seed) for seed in values])
        spread = (v - mean) @ normal / (math.sqrt(n * (n - 1)) * self._draw_scale(size, n))
        return np.concatenate([[mean], mean + spread])

    def _draw_normal(self, size: int, seed: int) -> Floats:
        key = (0, size, seed)
        if key not in self._kept:
            self._kept[key] = np.random.default_rng(key).standard_normal(self.draws)
        return self._kept[key]

    def _draw_scale(self, size: int, n: int) -> Floats:
        """Return a factor for the standard deviation of n normal values relative to the true one."""
        key = (1, size, n)
        if key not in self._kept:
            self._kept[key] = np.sqrt(np.random.default_rng(key).chisquare(n - 1, self.draws) / (n - 1))
        return self._kept[key]


def fit_curve(
    parameters: Sequence[float], losses: Sequence[BySeed], draws: SeedDraws, level: float = 0.05
) -> Curve | None:
    """Return the curve of one arm; None if fewer than four sizes have a seed that trained.

    Args:
        parameters: of each size, ascending.
        losses: of each size: seed -> loss, of the seeds that trained.
        draws: of the seeds.
        level: the error of the intervals. There are no intervals if a size has fewer than three seeds, or all its seeds
            have the same loss.
    """
    kept = [k for k, by_seed in enumerate(losses) if by_seed]
    if len(kept) < LEAST_SIZES:
        return None
    sizes = tuple(float(parameters[k]) for k in kept)
    means = np.stack([draws.draw_mean(k, losses[k]) for k in kept], axis=1)
    sure = all(len(losses[k]) >= LEAST and varies(list(losses[k].values())) for k in kept)
    return Curve(_fit_with_floor(np.array(sizes) / sizes[0], means), sizes, level if sure else 0.0)


def fit_gap(
    parameters: Sequence[float],
    arm: Sequence[BySeed],
    baseline: Sequence[BySeed],
    draws: SeedDraws,
    level: float = 0.05,
) -> Gap | None:
    """Return the difference of two arms, both fitted to the seeds on which both trained; None if fewer than four sizes
    have one. Arguments as in `fit_curve`."""
    ours = [{seed: a[seed] for seed in a if seed in b} for a, b in zip(arm, baseline, strict=True)]
    theirs = [{seed: b[seed] for seed in a} for a, b in zip(ours, baseline, strict=True)]
    pairs = [(list(a.values()), list(b.values())) for a, b in zip(ours, theirs, strict=True) if a]
    sure = all(varies(np.subtract(a, b).tolist(), max(map(abs, a))) for a, b in pairs)
    fitted = [fit_curve(parameters, losses, draws, level if sure else 0.0) for losses in (ours, theirs)]
    return Gap(fitted[0], fitted[1]) if fitted[0] and fitted[1] else None


def varies(values: Sequence[float], scale: float | None = None) -> bool:
    """Return whether `values` differ by more than rounding; otherwise they do not show the variation between seeds.
    `scale` is the magnitude of the rounded numbers, by default the largest value."""
    largest = max(map(abs, values)) if scale is None else scale
    return float(np.std(values)) > EQUAL * largest


def _fit_with_floor(x: Floats, y: Floats) -> Floats:
    """Return [a, b, c] of the least squares fit of a + b x^-c, with a and b of at least 0, for each row of `y`
    [rows, sizes]: for each exponent of a fine grid a and b are known in closed form."""
    z = x[:, None] ** -_EXPONENTS
    centred = z - z.mean(axis=0)
    mean = y.mean(axis=1, keepdims=True)
    b = np.maximum(y @ (centred / (centred**2).sum(axis=0)), 0)
    a = mean - b * z.mean(axis=0)
    through = y @ (z / (z**2).sum(axis=0))
    b, a = np.where(a < 0, through, b), np.maximum(a, 0)
    # the squared error less sum(y^2), which is the same for all exponents
    moment, square = y @ z, (z**2).sum(axis=0)
    n = len(x)
    error = n * a**2 + b**2 * square + 2 * a * b * z.sum(axis=0) - 2 * a * n * mean - 2 * b * moment
    best = error.argmin(axis=1)
    rows = np.arange(len(y))
    return np.stack([a[rows, best], b[rows, best], _EXPONENTS[best]], axis=1)
