"""Intervals, against scipy's own and by simulation."""

import numpy as np
import pytest
from scipy import stats

from ablate.verdict.intervals import (
    Estimate,
    bound_mean,
    least_sd_of_difference,
    least_sd_of_value,
)


def test_the_interval_at_a_level_is_students():
    values = [0.03, 0.01, 0.04, 0.02, 0.05]
    found = bound_mean(values, 0.012)
    assert found.interval == pytest.approx(stats.t.interval(0.988, 4, np.mean(values), stats.sem(values)), rel=1e-9)
    assert bound_mean(values, 0.0).half_width is None
    assert bound_mean([2.0], 0.05) == Estimate(2.0, None, None, 1)
    with pytest.raises(ValueError, match="nothing"):
        bound_mean([], 0.05)


def test_equal_differences_show_nothing_unless_the_metric_counts():
    assert bound_mean([0.1] * 3, 0.05) == Estimate(pytest.approx(0.1), None, pytest.approx(0.0), 3)
    rounded = [3.1 - 3.0, 2.1 - 2.0, 1.1 - 1.0]  # 0.1 but for the last bits
    assert bound_mean(rounded, 0.05, scale=3.1).half_width is None
    floor = least_sd_of_difference(1 / 90)
    counted = bound_mean([2 / 90] * 3, 0.05, floor)
    assert counted.half_width == pytest.approx(stats.t.ppf(0.975, 2) * floor / np.sqrt(3))


def test_the_floor_is_what_rounding_does():
    x = np.random.default_rng(0).uniform(0, 1, (2, 100_000))
    error = np.round(x, 1) - x
    assert least_sd_of_value(0.1) == pytest.approx(error[0].std(), rel=0.01)
    assert least_sd_of_difference(0.1) == pytest.approx((error[0] - error[1]).std(), rel=0.01)


@pytest.mark.parametrize(
    ("mean", "half_width", "sign"), [(0.3, 0.2, 1), (-0.3, 0.2, -1), (0.1, 0.2, 0), (0.2, 0.2, 0), (0.3, None, 0)]
)
def test_the_sign_of_an_interval(mean, half_width, sign):
    assert Estimate(mean, half_width, 0.1, 5).sign == sign
