"""Simulated ladders: losses and failures with known true values, compared like those of a real ladder."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ablate.addons.scaling.comparison import Comparison, compare_sizes
from ablate.addons.scaling.fits import Interval, SeedDraws
from ablate.addons.scaling.speedup import find_speedups
from ablate.verdict.comparison import FreshOutcomes
from ablate.verdict.looks import Looks
from ablate.verdict.outcomes import Outcome

SIZES = (1e6, 4e6, 1.6e7, 6.4e7)
BASELINE, ARM = "pre", "post"
Loss = Callable[[float], float]
"""Number of parameters -> expected loss."""


def compute(parameters: float) -> float:
    """Return the FLOPs of a training on twenty tokens for each parameter."""
    return 120 * parameters**2


@dataclass(frozen=True)
class Truth:
    """The true losses of the arms, and the noise of the seeds: a part that all arms share, and a part of each run."""

    losses: dict[str, Loss]
    """Arm -> its expected loss; the first is the baseline."""
    sizes: Sequence[float] = SIZES
    shared: float = 0.02
    """Standard deviation of a seed's effect that is common to all arms."""
    own: float = 0.01
    """Standard deviation of each run's own noise."""
    growth: float = 1.0
    """Factor of the noise from each size to the next."""
    failing: Callable[[str, int], float] = field(default=lambda arm, size: 0.0)
    """(arm, index of the size) -> probability that a seed fails."""

    def difference(self, parameters: float) -> float:
        """Return the expected difference of the second arm from the baseline."""
        baseline, arm = list(self.losses.values())[:2]
        return arm(parameters) - baseline(parameters)

    def speed_up(self, parameters: float) -> float:
        """Return the compute with which the first arm would reach the loss of the second at a size, over the compute
        there."""
        baseline, arm = list(self.losses.values())[:2]
        goal = arm(parameters)
        low, high = 1e-6, 1e18
        if baseline(high) >= goal:
            return math.inf
        for _ in range(200):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if baseline(middle) > goal else (low, middle)
        return compute(high) / compute(parameters)

    def draw(self, seeds: int, generator: np.random.Generator) -> dict[str, list[FreshOutcomes]]:
        """Return arm -> for each size, the outcomes of its fresh seeds."""
        drawn: dict[str, list[FreshOutcomes]] = {arm: [] for arm in self.losses}
        for k, n in enumerate(self.sizes):
            scale = self.growth**k
            common = self.shared * scale * generator.standard_normal(seeds)
            for arm, loss in self.losses.items():
                values = loss(n) + common + self.own * scale * generator.standard_normal(seeds)
                failed = generator.random(seeds) < self.failing(arm, k)
                drawn[arm].append(
                    FreshOutcomes({
                        seed: Outcome("diverged") if failed[seed] else Outcome("trained", float(values[seed]))
                        for seed in range(seeds)
                    })
                )  # fmt: skip
        return drawn


def build_curve(floor: float, height: float, exponent: float) -> Loss:
    """Return the loss floor + height (N / 1e6)^-exponent."""
    return lambda parameters: floor + height * (parameters / 1e6) ** -exponent


def build_converging(target: float = 1e9, difference: float = -0.005, **noise: Any) -> Truth:
    """Return two arms whose curves have floors, half a nat apart at the smallest size and `difference` at `target`."""
    height, exponent = 0.5, 0.35
    floor = difference + height * (target / 1e6) ** -exponent
    return Truth({BASELINE: build_curve(2, 1, exponent), ARM: build_curve(2 + floor, 1 - height, exponent)}, **noise)


def measure_coverage(truth: Truth, seeds: int, target: float, ladders: int, draws: int = 1000) -> Counter[str]:
    """Return how many of `ladders` intervals of each kind contain the true value, and how many there were ("...
    of")."""
    generator, drawn, held = np.random.default_rng(1), SeedDraws(draws), Counter[str]()

    def count(name: str, interval: Interval | None, true: float) -> None:
        if interval is not None and interval.low is not None and interval.high is not None:
            held[name] += interval.low <= true <= interval.high
            held[f"{name} of"] += 1

    for _ in range(ladders):
        found = compare_sizes(truth.sizes, truth.draw(seeds, generator), BASELINE, draws=drawn)
        pair, curve = found.pairs[ARM], found.arms[BASELINE].curve
        largest = truth.sizes[-1]
        if pair.gap and pair.gap.reaches(target):
            count("difference at the target", pair.gap.at(target), truth.difference(target))
        if curve and curve.reaches(target):
            count("loss at the target", curve.at(target), truth.losses[BASELINE](target))
        if pair.gap:
            count("difference at the largest size", pair.gap.at(largest), truth.difference(largest))
        if pair.prediction:
            count("error of the prediction", pair.prediction.error, 0.0)
        computes = {arm: [compute(n) for n in truth.sizes] for arm in truth.losses}
        losses = {arm: one.losses for arm, one in found.arms.items()}
        speedups = find_speedups(computes, losses, BASELINE, drawn).get(ARM, [])
        for k, speedup in enumerate(speedups):
            place = "largest" if k == len(speedups) - 1 else "other"
            count(f"speed-up at the {place} size", speedup, truth.speed_up(truth.sizes[k]))
        if pair.trend:
            count("change", pair.trend.change, truth.difference(largest) - truth.difference(truth.sizes[0]))
    return held


def count_claims(truth: Truth, looks: Sequence[int], ladders: int, planned: int | None = None) -> Counter[str]:
    """Return how many of `ladders` claim a trend, a trend of failures, a difference at a size, more failures at a size,
    and any of these.

    Args:
        truth: what is true.
        looks: the numbers of seeds at which the ladder is looked at. Looking stops at the first claim.
        ladders: how many.
        planned: the number of seeds planned at the first look; by default that of the first look.
    """
    generator, drawn, claims = np.random.default_rng(2), SeedDraws(2), Counter[str]()
    for _ in range(ladders):
        outcomes = truth.draw(looks[-1], generator)
        seen: set[str] = set()
        for k, n in enumerate(looks):
            made = Looks(tuple(looks[: k + 1]), planned or looks[0])
            cut = {
                arm: [replace(f, outcomes=dict(list(f.outcomes.items())[:n]), looks=made) for f in by_size]
                for arm, by_size in outcomes.items()
            }
            seen |= _list_claims(compare_sizes(truth.sizes, cut, next(iter(truth.losses)), draws=drawn))
        claims.update(seen | ({"any"} if seen else set()))
    return claims


def _list_claims(found: Comparison) -> set[str]:
    """Return the kinds of what is claimed."""
    claims = set()
    for pair in found.pairs.values():
        if pair.trend and pair.trend.word in ("grows", "shrinks", "changes"):
            claims.add("trend")
        if any(versus.side for versus in pair.measured):
            claims.add("difference")
        if any(versus.failure_side for versus in pair.measured):
            claims.add("failures")
    for arm in found.arms.values():
        if arm.failure_trend.p is not None and arm.failure_trend.p <= arm.failure_level:
            claims.add("trend of failures")
    return claims
