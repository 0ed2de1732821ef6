"""What other settings of an arm promise: a response surface of the objective near the chosen settings, fitted to the
runs that chose them (Box and Wilson 1951, J. R. Stat. Soc. B 13, 1-45). Its constants were chosen by simulation:
valleys that are no parabolas lead to as few false claims as parabolas (docs/explanation/verdict-simulation.md)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from ablate.verdict.outcomes import Outcome

if TYPE_CHECKING:
    from numpy import ndarray

Place = tuple[float, ...]
"""Settings as the place on each searched parameter, in steps of its search."""

WINDOW = 2.0
"""Steps from the chosen settings within which the surface is fitted."""
_DEPARTURE = 0.5
"""Standard deviation of the departure from the quadratic, as a share of what one step costs by its curvature."""
_SMOOTH = 1.0
"""Steps over which the departure is similar."""
_CLEARLY = 2.0
"""Standard errors by which a tried rival is better than the chosen settings, so that the surface reaches around it."""
_APART = {1: 0.125, 2: 0.25, 3: 0.5}
"""Number of parameters -> steps between two places that are considered, in every combination; of more parameters one is
moved at a time. Around the best one they are closer, down to `_FINEST` steps."""
_FINEST = 0.125
_ROUNDS = 10
"""Rounds of the median polish."""


@dataclass(frozen=True)
class Noise:
    """What runs with the same settings differ by, without the effects of their seeds, as measured on fresh seeds."""

    variance: float = 0.0
    freedom: float = 0.0
    """Degrees of freedom of the variance."""
    far: float = 0.0
    """The distance beyond which a run lies far behind others (`tails.find_far`); 0: it is not known."""


@dataclass(frozen=True)
class Rival:
    """Other settings of an arm, and what they may gain over the chosen ones."""

    place: Place
    gain: float
    """How much better they are expected to be, in the objective; negative: worse."""
    variance: float
    """Of that expectation; infinite: nothing is known."""
    freedom: float
    """Degrees of freedom of the variance."""
    tried: bool
    """Whether they were run on every seed of the choice."""
    typical: bool = False
    """Whether it is what typical runs promise: those that lie far behind were set aside."""

    def reach(self, limit: float) -> float:
        """Return the gain that is just possible at `limit` standard errors."""
        return math.inf if math.isinf(self.variance) else self.gain + limit * math.sqrt(self.variance)


@dataclass(frozen=True)
class Valley:
    """The rivals of the chosen settings of an arm."""

    rivals: tuple[Rival, ...] = ()
    open: bool = False
    """Whether the arm may try further settings."""
    edge: str = ""
    """The end of a searched range at which it stands: 'at the upper end of its range of optimizer.lr'; '' for none."""


NOTHING = Valley()
"""That of an arm that searches nothing."""


def list_rivals(
    runs: Mapping[Place, Mapping[int, Outcome]],
    chosen: Place,
    spans: Sequence[tuple[float, float]],
    seeds: Sequence[int],
    maximize: bool = False,
    noise: Noise = Noise(),
) -> tuple[Rival, ...]:
    """Return all places near the chosen one, and near a clearly better one that was tried, and the tried ones further
    away, with what they promise. Where some runs lie far behind others that tell of the same settings, there is a
    second reading without them: by what typical runs promise, those settings may be better than they seem.

    Args:
        runs: place -> seed -> outcome, of the runs that chose the settings.
        chosen: the place of the chosen settings.
        spans: the lowest and the highest place that are allowed, for each parameter.
        seeds: the seeds on which the choice was made.
        maximize: whether a higher objective is better.
        noise: as measured elsewhere; the least that is assumed.
    """
    runs = {place: dict(sorted(runs[place].items())) for place in sorted(runs)}  # whichever ended first
    sign = -1.0 if maximize else 1.0
    failed = {place for place, ended in runs.items() if any(not one.trained for one in ended.values())}
    known = {
        place: {seed: sign * (one.value or 0.0) for seed, one in ended.items()}
        for place, ended in runs.items()
        if place not in failed
    }
    known[chosen] = {seed: sign * (o.value or 0.0) for seed, o in runs.get(chosen, {}).items() if o.trained}
    rivals = _list_all(known, failed, chosen, spans, seeds, noise)
    typical = _set_aside(known, chosen, noise.far) if noise.far else known
    if typical != known:
        second = _list_all(typical, failed, chosen, spans, seeds, noise)
        tried = {place for place, own in known.items() if {*seeds} <= own.keys()}
        rivals += [replace(rival, typical=True, tried=rival.place in tried) for rival in second]
    return tuple(rivals)


def _set_aside(
    known: Mapping[Place, Mapping[int, float]], chosen: Place, limit: float
) -> dict[Place, dict[int, float]]:
    """Return the runs without those that lie more than `limit` behind the best one at the same place, or behind both
    the chosen place and one beyond them: a valley has no hill. The effects of seeds are taken out."""
    effects = _polish(known)
    apart = {place: {seed: value - effects[seed] for seed, value in own.items()} for place, own in known.items() if own}
    near = {place: [seed for seed, v in own.items() if v <= min(own.values()) + limit] for place, own in apart.items()}
    middles = {place: median(apart[place][seed] for seed in own) for place, own in near.items()}
    here = middles.get(chosen, math.inf)
    hills = {
        place
        for place, middle in middles.items()
        if any(_lies_between(place, chosen, q) and middle > max(here, beyond) + limit for q, beyond in middles.items())
    }
    return {p: {seed: known[p][seed] for seed in near.get(p, ())} for p in known if p not in hills}


def _polish(known: Mapping[Place, Mapping[int, float]]) -> dict[int, float]:
    """Return the effects of the seeds by median polish of places and seeds (Tukey 1977, Exploratory Data Analysis,
    chapter 11): runs that lie far behind do not move them."""
    effects = {seed: 0.0 for own in known.values() for seed in own}
    several = [own for own in known.values() if len(own) > 1]
    for _ in range(_ROUNDS):
        levels = [median(value - effects[seed] for seed, value in own.items()) for own in several]
        for seed in effects:
            rest = [own[seed] - level for own, level in zip(several, levels, strict=True) if seed in own]
            effects[seed] = median(rest) if rest else 0.0
    return effects


def _lies_between(place: Place, one: Place, other: Place) -> bool:
    """Return whether a place lies on the line between two others."""
    moves = [(a - c, b - c) for a, b, c in zip(place, other, one, strict=True)]
    length = math.fsum(b * b for _, b in moves)
    part = math.fsum(a * b for a, b in moves) / length if length else 0.0
    return 0 < part < 1 and max(abs(a - part * b) for a, b in moves) < 1e-3


def _list_all(
    known: Mapping[Place, Mapping[int, float]],
    failed: Collection[Place],
    chosen: Place,
    spans: Sequence[tuple[float, float]],
    seeds: Sequence[int],
    noise: Noise,
) -> list[Rival]:
    """Return the places of `list_rivals`, of one reading of the runs."""
    model, rivals = _list_near(known, failed, [chosen], spans, seeds, noise)
    better = [rival for rival in rivals if rival.tried and rival.reach(-_CLEARLY) > 0]
    if better:
        centres = [chosen, max(better, key=lambda rival: rival.gain).place]
        model, rivals = _list_near(known, failed, centres, spans, seeds, noise)
    near = {chosen, *(rival.place for rival in rivals)}
    for place in [place for place in known if place not in near]:  # beyond the quadratic, only its own runs tell
        both = [seed for seed in known[place] if seed in known[chosen]]
        gain = math.fsum(known[chosen][seed] - known[place][seed] for seed in both) / len(both) if both else 0.0
        variance = 2 * model.variance / len(both) if both else math.inf
        rivals.append(Rival(place, gain, variance, model.freedom, {*seeds} <= known[place].keys()))
    return rivals


def _list_near(
    known: Mapping[Place, Mapping[int, float]],
    failed: Collection[Place],
    centres: Sequence[Place],
    spans: Sequence[tuple[float, float]],
    seeds: Sequence[int],
    noise: Noise,
) -> tuple[_Surface, list[Rival]]:
    """Return the surface around `centres`, the first of which is the chosen place, and the other places there."""
    import numpy as np

    chosen = centres[0]
    near = {p: own for p, own in known.items() if min(_distance(p, centre) for centre in centres) <= WINDOW + 1e-9}
    model = _Surface(near, chosen, noise)
    apart = _APART.get(sum(high > low for low, high in spans), _FINEST)
    moves = [i * apart for i in range(-round(WINDOW / apart), round(WINDOW / apart) + 1)]
    new = [place for place in near if place != chosen]
    new += [place for centre in centres for place in _list_places(centre, spans, moves)]
    rivals: dict[Place, Rival] = {}
    while True:
        new = [p for p in dict.fromkeys(new) if p in near or not any(_distance(p, q) < 1e-6 for q in (*near, *failed))]
        gains, variances = model.promise(np.array(new).reshape(len(new), len(chosen)) - np.array(chosen))
        for place, gain, variance in zip(new, gains, variances, strict=True):
            is_tried = {*seeds} <= known.get(place, {}).keys()
            rivals.setdefault(place, Rival(place, float(gain), float(variance), model.freedom, is_tried))
        if apart <= _FINEST or not rivals:
            return model, [*rivals.values()]
        apart /= 2  # in a steep valley the best place lies between those
        best = max(rivals.values(), key=lambda rival: -math.inf if math.isinf(rival.variance) else rival.gain)
        new = [*_list_places(best.place, spans, (-apart, 0.0, apart))]


def _distance(one: Place, other: Place) -> float:
    return max((abs(a - b) for a, b in zip(one, other, strict=True)), default=0.0)


def _list_places(chosen: Place, spans: Sequence[tuple[float, float]], moves: Sequence[float]) -> Iterable[Place]:
    """Yield the places that are `moves` away from the chosen one."""
    axes = [
        [p + m for m in moves if low - 1e-6 <= p + m <= high + 1e-6 or not m]
        for p, (low, high) in zip(chosen, spans, strict=True)
    ]
    if sum(high > low for low, high in spans) in _APART:
        yield from (place for place in itertools.product(*axes) if place != chosen)
        return
    for i, axis in enumerate(axes):
        yield from ((*chosen[:i], value, *chosen[i + 1 :]) for value in axis if value != chosen[i])


class _Surface:
    """A quadratic in the places around the chosen one, with an effect of each seed and a smooth departure from it whose
    size goes with the curvature (universal kriging; Cressie 1993, Statistics for Spatial Data, section 3.4). The noise
    is what runs at the same place differ by, once their seeds are taken out. Where the runs fit the surface worse than
    all that allows, as at a cliff or with outliers, its variances grow by as much (Birge 1932, Phys. Rev. 40, 207)."""

    def __init__(self, near: Mapping[Place, Mapping[int, float]], chosen: Place, least: Noise) -> None:
        import numpy as np

        rows = [(place, seed, value) for place, own in near.items() for seed, value in own.items()]
        seeds = sorted({seed for _, seed, _ in rows})
        places = list(near)
        self._at = np.array([place for place, _, _ in rows]).reshape(len(rows), len(chosen)) - np.array(chosen)
        self._blocks = np.array([[float(seed == own) for seed in seeds] for _, own, _ in rows]).reshape(
            len(rows), len(seeds)
        )
        cells = np.array([[float(place == own) for own in places] for place, _, _ in rows]).reshape(
            len(rows), len(places)
        )
        values = np.array([value for _, _, value in rows])
        self.mixed = len(chosen) > 1 and len(rows) - len(seeds) > len(chosen) * (len(chosen) + 3) // 2
        saturated = np.hstack([self._blocks, cells])
        rest = values - saturated @ (np.linalg.pinv(saturated, rcond=1e-9) @ values)
        self.freedom = float(len(rows) - np.linalg.matrix_rank(saturated, tol=1e-8)) if rows else 0.0
        self.variance = float(rest @ rest) / self.freedom if self.freedom > 0 else math.inf
        if least.variance > self.variance:
            self.variance, self.freedom = least.variance, least.freedom
        design = np.hstack([self._blocks, self._expand(self._at)])
        plain = np.linalg.pinv(design, rcond=1e-9)
        self._known = (plain @ design)[len(seeds) :, len(seeds) :]  # what the runs determine
        curvature = (plain @ values)[len(seeds) + len(chosen) :][: len(chosen)]
        self._departure = float((curvature**2).sum()) * _DEPARTURE**2
        noise = self.variance if math.isfinite(self.variance) else 1.0
        noise = max(noise, 1e-9 * self._departure, 1e-300)  # of runs that are all alike
        covariance = noise * np.eye(len(rows)) + self._departure * self._correlate(self._at, self._at)
        self._inverse = np.linalg.inv(covariance) if rows else covariance
        self._spread = np.linalg.pinv(design.T @ self._inverse @ design, rcond=1e-12)
        self._terms = self._spread @ design.T @ self._inverse @ values
        self._rest = values - design @ self._terms
        spare = len(rows) - np.linalg.matrix_rank(design, tol=1e-8) if rows else 0
        self._misfit = max(1.0, float(self._rest @ self._inverse @ self._rest) / spare) if spare else 1.0
        self._design = design

    def _expand(self, moved: ndarray) -> ndarray:
        import numpy as np

        parts = [moved, moved**2]
        if self.mixed:
            pairs = itertools.combinations(range(moved.shape[1]), 2)
            parts += [moved[:, [i]] * moved[:, [j]] for i, j in pairs]
        return np.hstack(parts)

    @staticmethod
    def _correlate(one: ndarray, other: ndarray) -> ndarray:
        import numpy as np

        squared = ((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=2)
        return np.exp(-squared / (2 * _SMOOTH**2))

    def promise(self, moved: ndarray) -> tuple[ndarray, ndarray]:
        """Return the gain of each of the places, given from the chosen one, and its variance: infinite where the runs
        do not determine it."""
        import numpy as np

        here = np.zeros((1, moved.shape[1]))
        terms = self._expand(moved)
        full = np.hstack([np.zeros((len(moved), self._blocks.shape[1])), terms])
        shared = self._departure * (self._correlate(moved, self._at) - self._correlate(here, self._at))
        gains = -(full @ self._terms + shared @ self._inverse @ self._rest)
        left = full - shared @ self._inverse @ self._design
        own = 2 * self._departure * (1 - self._correlate(moved, here)[:, 0])
        known = np.einsum("ij,jk,ik->i", shared, self._inverse, shared)
        variances = np.maximum(own - known, 0.0) + np.einsum("ij,jk,ik->i", left, self._spread, left)
        variances *= self._misfit
        unknown = np.abs(terms @ self._known - terms).max(axis=1, initial=0.0) > 1e-6
        unknown |= math.isinf(self.variance)
        return np.where(unknown, 0.0, gains), np.where(unknown, math.inf, variances)
