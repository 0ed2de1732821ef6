"""The effective speed-up of an arm on a ladder: the compute with which the baseline would reach the arm's loss, by the
curve through the baseline's losses against compute, over the arm's compute.

It is marin's (https://github.com/marin-community/marin/issues/8096: a law L + A C^-alpha through the baseline,
inverted at the loss of the variant), with the floor fitted instead of pinned. The interval is the bootstrap over seeds
of `fits`, the arm's mean and the curve drawn together, so that what a seed does to both cancels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from ablate.addons.scaling.fits import BySeed, Curve, Floats, Interval, SeedDraws, fit_curve, varies
from ablate.verdict.failures import ALPHA
from ablate.verdict.sequential import LEAST


def find_speedups(
    computes: Mapping[str, Sequence[float]],
    losses: Mapping[str, Sequence[BySeed]],
    baseline: str,
    draws: SeedDraws | None = None,
) -> dict[str, list[Interval | None]]:
    """Return arm -> its effective speed-up at each size, above 1 where it needs less compute than the baseline;
    infinite where the baseline's curve never comes to its loss. None where no seed trained; empty where the baseline
    has no curve, for which it takes four sizes of ascending compute.

    Args:
        computes: arm -> FLOPs of a training at each size.
        losses: arm -> for each size: seed -> loss, of the seeds that trained.
        baseline: the arm that the others are compared with.
        draws: of the seeds.
    """
    draws, own = draws or SeedDraws(), computes[baseline]
    if any(left >= right for left, right in pairwise(own)):
        return {}
    curve = fit_curve(own, losses[baseline], draws)
    if curve is None:
        return {}
    return {
        arm: [
            _divide(curve, draws.draw_mean(k, by_seed) if by_seed else None, computes[arm][k], by_seed)
            for k, by_seed in enumerate(by_size)
        ]
        for arm, by_size in losses.items()
        if arm != baseline
    }


def _divide(curve: Curve, means: Floats | None, compute: float, by_seed: BySeed) -> Interval | None:
    if means is None:
        return None
    ratios = find_compute(curve, means) / compute
    values = list(by_seed.values())
    if not curve.level or len(values) < LEAST or not varies(values):
        return Interval(float(ratios[0]), None, None)
    # ends that are draws themselves, since some may be infinite
    low = float(np.quantile(ratios[1:], ALPHA / 2, method="lower"))
    return Interval(float(ratios[0]), low, float(np.quantile(ratios[1:], 1 - ALPHA / 2, method="higher")))


def find_compute(curve: Curve, losses: Floats) -> Floats:
    """Return the compute at which each draw of `curve` has the loss of the same draw; infinite at its floor and
    below."""
    a, b, c = curve.coefficients.T
    above = losses - a
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found = curve.sizes[0] * (above / b) ** (-1 / c)
    compute: Floats = np.where((above > 0) & (b > 0), found, np.inf)
    return compute
