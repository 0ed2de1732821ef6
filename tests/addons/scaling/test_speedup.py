"""Effective speed-ups of ladders without noise, against the inverse of the curve by hand."""

import math

import numpy as np
import pytest

from ablate.addons.scaling.fits import Curve
from ablate.addons.scaling.speedup import find_compute, find_speedups

COMPUTES = [1e12, 1e13, 1e14, 1e15, 1e16]


def law(compute):
    return 2.0 + 1.5 * (compute / 1e12) ** -0.15


def draw(losses):
    """Five seeds that vary a little about each loss."""
    return [{seed: loss + 1e-4 * math.sin(seed + 7 * k) for seed in range(5)} for k, loss in enumerate(losses)]


def test_an_arm_of_half_the_compute_is_twice_as_fast():
    arm = draw([law(2 * compute) for compute in COMPUTES])
    computes = {"pre": COMPUTES, "arm": COMPUTES, "dear": [3 * compute for compute in COMPUTES]}
    found = find_speedups(computes, {"pre": draw(map(law, COMPUTES)), "arm": arm, "dear": arm}, "pre")
    assert [one.value for one in found["arm"]] == pytest.approx([2.0] * 5, rel=0.02)
    assert [one.value for one in found["dear"]] == pytest.approx([2 / 3] * 5, rel=0.02)
    assert all(one.low < one.value < one.high for one in found["arm"])


def test_a_loss_below_the_floor_is_never_reached():
    found = find_speedups(
        {"pre": COMPUTES, "arm": COMPUTES}, {"pre": draw(map(law, COMPUTES)), "arm": draw([1.9] * 5)}, "pre"
    )
    assert found["arm"][-1].value == math.inf
    assert found["arm"][-1].high == math.inf
    curve = Curve(np.array([[2.0, 1.5, 0.15]] * 3), (1e12, 1e13), 0.05)
    assert find_compute(curve, np.array([law(1e14), 2.0, 1.0])) == pytest.approx([1e14, math.inf, math.inf])


def test_what_has_no_curve_or_no_interval():
    both = {"pre": draw(map(law, COMPUTES)), "arm": draw(map(law, COMPUTES))}
    assert find_speedups({"pre": COMPUTES[::-1], "arm": COMPUTES}, both, "pre") == {}
    short = {arm: losses[:3] for arm, losses in both.items()}
    assert find_speedups({"pre": COMPUTES[:3], "arm": COMPUTES[:3]}, short, "pre") == {}
    few = {**both, "arm": [*both["arm"][:4], {0: 2.5}]}
    assert find_speedups({"pre": COMPUTES, "arm": COMPUTES}, few, "pre")["arm"][-1].low is None
    none = {**both, "arm": [*both["arm"][:4], {}]}
    assert find_speedups({"pre": COMPUTES, "arm": COMPUTES}, none, "pre")["arm"][-1] is None
