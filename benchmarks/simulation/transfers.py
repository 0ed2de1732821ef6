"""Simulated transfers: losses over rates and sizes with a known best rate, judged like those of real runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ablate.addons.scaling.optimum import Curves
from ablate.addons.scaling.transfer import INTERVALS, compare_rates, judge_arm
from ablate.verdict.failures import ALPHA, count_family
from ablate.verdict.looks import nominal_levels, plan_looks

WIDTHS = (32, 64, 128, 256)
EFFECT = 0.05


@dataclass(frozen=True)
class Truth:
    """A loss over the learning rate, and the noise of the seeds."""

    slope: float = 0.0
    """Base-2 logarithm of the best rate's factor for each doubling of the width."""
    widths: Sequence[int] = WIDTHS
    steps: Sequence[float] = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
    """Base-2 logarithms of the searched rates; the best one at the middle of the sizes is at 0.3."""
    curvature: float = 0.04
    """Nats by which a rate of half or twice the best one is worse."""
    skew: float = 0.0
    """Factor by which the loss rises faster above the best rate than below, less one."""
    sharpening: float = 0.0
    """What the largest width's skew is above the smallest's, so that the curve changes its form with the width."""
    shared: float = 0.02
    """Standard deviation of a seed's effect that all rates share."""
    own: float = 0.005
    """Standard deviation of each run."""
    wandering: float = 0.0
    """Standard deviation of a seed's own best rate, in doublings."""
    cliff: float = math.inf
    """Doublings above the best rate from which every seed fails."""

    def find_best(self, width: float) -> float:
        """Return the base-2 logarithm of the best rate."""
        middle = sum(math.log2(w) for w in self.widths) / len(self.widths)
        return 0.3 + self.slope * (math.log2(width) - middle)

    def rise(self, distance: float, width: float) -> float:
        """Return the nats that a rate costs which is `distance` doublings above the best one at a width."""
        share = math.log(width / self.widths[0]) / math.log(self.widths[-1] / self.widths[0])
        skew = self.skew + self.sharpening * share
        return self.curvature * distance**2 * (1 + skew if distance > 0 else 1.0)

    def draw(self, seeds: int, generator: np.random.Generator) -> list[Curves]:
        """Return the curves of each size."""
        sizes: list[Curves] = []
        for width in self.widths:
            best, curves = self.find_best(width), {}
            for seed in range(seeds):
                own_best = best + self.wandering * generator.standard_normal()
                level = 2.0 + self.shared * generator.standard_normal()
                curves[seed] = {
                    2.0**step: None
                    if step - best > self.cliff
                    else level + self.rise(step - own_best, width) + self.own * generator.standard_normal()
                    for step in self.steps
                }
            sizes.append(curves)
        return sizes

    def cost(self) -> float:
        """Return the nats that the grid's best rate of the smallest size costs at the largest, against the grid's best
        there."""
        (small, best), (large, other) = ((width, self.find_best(width)) for width in (self.widths[0], self.widths[-1]))
        chosen = min(self.steps, key=lambda step: self.rise(step - best, small))
        kept = (self.rise(step - other, large) for step in self.steps if step - other <= self.cliff)
        return self.rise(chosen - other, large) - min(kept)


def count_claims(truth: Truth, seeds: int, arms: int, times: int, seed: int = 1) -> Counter[str]:
    """Return how many of `times` arms, each one of `arms` that share the error, are said to move up or down, to hold
    and to cost, and how many slopes there are and have an interval that misses the true one."""
    generator, claims, looks = np.random.default_rng(seed), Counter[str](), plan_looks(seeds, seeds)
    for _ in range(times):
        drawn = truth.draw(seeds, generator)
        rates = compare_rates(drawn[0], drawn[-1])
        family = count_family(INTERVALS * arms, [rates.alone + rates.other_alone] if rates else [])
        level = nominal_levels(looks, ALPHA / family)[-1]
        one = judge_arm(drawn, rates, truth.widths, level, EFFECT)
        claims[one.word] += 1
        claims[{1: "rises", -1: "falls", 0: "stays"}[one.moves]] += 1
        if one.slope is not None and (ends := one.slope.interval):
            claims["slopes"] += 1
            claims["missed"] += not ends[0] <= truth.slope <= ends[1]
    return claims
