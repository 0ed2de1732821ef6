"""The best learning rate of one seed, and of a size over seeds.

Each seed has a curve of its own, so that the rates of several seeds are independent values with an ordinary interval. A
seed's best rate is the minimum of the parabola through its lowest loss and the two beside it, over the logarithm of the
rate. Where one of these two failed there is no parabola, and the rate of the lowest loss stands, rounded to the grid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ablate.verdict.intervals import Estimate, bound_mean, least_sd_of_value
from ablate.verdict.outcomes import Outcome

Curve: TypeAlias = dict[float, float | None]
"""Learning rate -> loss, of one seed; None: it failed."""
Curves: TypeAlias = dict[int, Curve]
"""Seed -> its curve."""
Edge = Literal["lowest", "highest"]


@dataclass(frozen=True)
class SeedOptimum:
    """The best learning rate of one seed."""

    log_rate: float
    """Its base-2 logarithm."""
    edge: Edge | None
    """Set if the lowest loss is at the end of the searched rates, so that the best one may lie beyond."""
    rounded: bool
    """Whether a neighbour failed, so that the rate is one of the grid."""


@dataclass(frozen=True)
class Optimum:
    """The best learning rate of an arm at one size."""

    seeds: Mapping[int, SeedOptimum]
    """The best rates of the seeds that trained at some rate."""
    log_rate: Estimate | None
    """Mean of the base-2 logarithm with its 95 % interval; None where no seed trained, without an interval where some
    seed's best rate lies at an edge."""
    least_sd: float = 0.0
    """Standard deviation of a seed's logarithm by rounding to the grid; 0 where none is rounded."""

    @property
    def rate(self) -> float | None:
        """The geometric mean over the seeds."""
        return None if self.log_rate is None else 2**self.log_rate.mean

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the rate."""
        ends = self.log_rate.interval if self.log_rate else None
        return None if ends is None else (2 ** ends[0], 2 ** ends[1])

    @property
    def at_edge(self) -> int:
        """Seeds whose best rate is the lowest or the highest that was searched."""
        return sum(seed.edge is not None for seed in self.seeds.values())

    @property
    def edges(self) -> list[Edge]:
        """The ends of the searched rates at which some seed's best rate lies."""
        return list(dict.fromkeys(seed.edge for seed in self.seeds.values() if seed.edge))


def find_seed_optimum(curve: Curve) -> SeedOptimum | None:
    """Return the best learning rate of one seed; None if it failed at every rate."""
    rates = sorted(curve)
    losses = [math.inf if (loss := curve[rate]) is None else loss for rate in rates]
    best = min(range(len(rates)), key=losses.__getitem__)
    if not math.isfinite(losses[best]):
        return None
    at = math.log2(rates[best])
    if best in (0, len(rates) - 1):
        return SeedOptimum(at, "highest" if best else "lowest", True)
    left, right = losses[best - 1], losses[best + 1]
    if not (math.isfinite(left) and math.isfinite(right)):
        return SeedOptimum(at, None, True)
    before, after = at - math.log2(rates[best - 1]), math.log2(rates[best + 1]) - at
    rise, fall = (right - losses[best]) / after, (left - losses[best]) / before
    curvature = (rise + fall) / (before + after)
    slope = (rise * before - fall * after) / (before + after)
    return SeedOptimum(at if curvature <= 0 else at - slope / (2 * curvature), None, False)


def find_optimum(curves: Curves, level: float = 0.05) -> Optimum:
    """Return the best learning rate over the seeds of `curves`, with an interval at `level`."""
    seeds = {seed: one for seed, curve in curves.items() if (one := find_seed_optimum(curve)) is not None}
    if not seeds:
        return Optimum(seeds, None)
    values = [one.log_rate for one in seeds.values()]
    if any(one.edge for one in seeds.values()):
        return Optimum(seeds, bound_mean(values, 0.0))
    # by rounding to the grid; 0 where no rate is rounded
    least = 0.0
    if any(one.rounded for one in seeds.values()):
        least = least_sd_of_value(find_step(next(iter(curves.values()))))
    return Optimum(seeds, bound_mean(values, level, least, scale=1.0), least)


def find_step(curve: Curve) -> float:
    """Return the base-2 logarithm of the largest factor between two neighbouring rates."""
    return max(math.log2(b / a) for a, b in itertools.pairwise(sorted(curve)))


def read_curves(outcomes: Mapping[float, Mapping[int, Outcome]]) -> Curves:
    """Return the curves of the seeds that have ended at every rate; `outcomes`: rate -> seed -> outcome. The loss of a
    seed that diverged or is stuck is None."""
    ended = set.intersection(*({*by_seed} for by_seed in outcomes.values())) if outcomes else set()
    return {
        seed: {rate: (o.value if (o := by_seed[seed]).trained else None) for rate, by_seed in outcomes.items()}
        for seed in sorted(ended)
    }
