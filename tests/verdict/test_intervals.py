"""Intervals, tests and corrections, against scipy's own, by hand, and by simulation."""

import numpy as np
import pytest
from scipy import stats

from ablate.verdict.intervals import (
    Difference,
    Estimate,
    bound_mean,
    correct_p_values,
    count_seeds_needed,
    estimate,
    estimate_difference,
    least_sd_of_difference,
    least_sd_of_value,
)


def test_the_interval_is_students():
    values = [1.83, 1.72, 1.75, 1.90]
    found = estimate(values)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert found.interval == pytest.approx((low, high), rel=1e-12)
    assert (found.n, found.sd) == (4, pytest.approx(np.std(values, ddof=1)))
    assert estimate([2.5]) == Estimate(2.5, None, None, 1)
    assert estimate([2.5]).interval is None
    with pytest.raises(ValueError, match="nothing"):
        estimate([])


def test_differences_are_paired_by_seed():
    arm, baseline = {1: 1.0, 2: 2.0, 3: 3.1, 9: 50.0}, {3: 3.0, 2: 2.2, 1: 1.1, 8: -50.0}
    found = estimate_difference(arm, baseline)
    expected = stats.ttest_rel([1.0, 2.0, 3.1], [1.1, 2.2, 3.0])
    assert (found.estimate.n, found.p) == (3, pytest.approx(expected.pvalue, rel=1e-12))
    assert found.estimate.interval == pytest.approx(tuple(expected.confidence_interval(0.95)), rel=1e-9)
    assert estimate_difference({1: 1.0}, {2: 1.0}) is None
    assert estimate_difference({1: 1.0}, {1: 2.0}).p is None
    assert estimate_difference({1: 1.0, 2: 2.0}, {1: 1.0, 2: 2.0}).p == 1.0
    assert estimate_difference({1: 1.5, 2: 2.5}, {1: 1.0, 2: 2.0}).p == 0.0


def test_holm_by_hand():
    """0.01 * 4, 0.02 * 3, 0.03 * 2 -> not below the one before, 0.5 * 1."""
    made = {
        name: Difference(Estimate(1.0, 1.0, 1.0, 5), p)
        for name, p in {"d": 0.5, "a": 0.01, "c": 0.03, "b": 0.02}.items()
    }
    found = correct_p_values({**made, "none": None, "single": Difference(Estimate(1.0, None, None, 1), None)})
    adjusted = {name: d.adjusted_p for name, d in found.items() if d}
    assert adjusted == {"a": 0.04, "b": 0.06, "c": 0.06, "d": 0.5, "single": None}
    assert [name for name, d in found.items() if d and d.shown] == ["a"]
    assert found["none"] is None


@pytest.mark.parametrize(
    ("sd", "effect", "comparisons"), [(1.0, 1.0, 1), (0.02, 0.01, 1), (1.0, 0.8, 4), (1.0, 5.0, 1)]
)
def test_seeds_needed_is_the_first_with_the_power(sd, effect, comparisons):
    n = count_seeds_needed(sd, effect, comparisons)
    generator = np.random.default_rng(1)

    def power(n):
        draws = generator.normal(effect, sd, (40_000, n))
        return (stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05 / comparisons).mean()

    assert power(n) > 0.79
    assert n == 2 or power(n - 1) < 0.81
    assert count_seeds_needed(sd, 0.0) is None
    assert count_seeds_needed(0.0, effect) == 2
    assert count_seeds_needed(1.0, 1e-9) is None


def test_coverage_and_false_positives():
    """Over 2,000 simulated comparisons of identical arms on 5 paired seeds with common and own noise."""
    generator = np.random.default_rng(0)
    covered = shown = 0
    for _ in range(2000):
        common = generator.normal(0, 0.05, 5)
        arms = [dict(enumerate(2.0 + common + generator.normal(0, 0.02, 5))) for _ in range(2)]
        low, high = estimate(list(arms[0].values())).interval
        covered += low <= 2.0 <= high
        shown += correct_p_values({"b": estimate_difference(arms[1], arms[0])})["b"].shown
    assert 0.935 < covered / 2000 < 0.965
    assert shown / 2000 < 0.06


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
