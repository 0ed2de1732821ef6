"""How soon an arm is there, against curves whose crossings are known by hand and the formula of Student's interval."""

import math
import statistics

import pytest
from scipy import stats

from ablate.verdict.speed import bound_median, find_reach, find_time, is_behind

CURVES = [{20: 4.0, 80: 1.0, 100: 0.9}] * 3
GOALS = [2.0, 2.2, 2.4]


def test_the_mean_curve_is_read_where_it_comes_to_the_goal_and_stays():
    """The arm falls by 0.05 in an update, from 4 at 20; the mean of the goals is 2.2."""
    reach = find_reach(CURVES, GOALS, 0.05)
    assert reach.at == pytest.approx(20 + 1.8 / 0.05)
    half = stats.t.ppf(0.975, 2) * statistics.stdev(GOALS) / math.sqrt(3)  # at every validation the same
    assert reach.low == pytest.approx(20 + (1.8 - half) / 0.05)
    assert reach.high == pytest.approx(20 + (1.8 + half) / 0.05)


def test_a_touch_by_chance_is_not_yet_there():
    reach = find_reach([{10: 4.0, 20: 1.9, 30: 2.6, 40: 1.0, 50: 0.9}] * 2, [2.0, 2.0], 0.0)
    assert reach.at == pytest.approx(30 + 10 * 0.6 / 1.6)
    assert (reach.low, reach.high) == (0.0, None)


def test_a_seed_that_never_gets_there_stays_in_the_mean():
    never = {20: 4.0, 80: 3.9, 100: 3.8}
    assert find_reach([*CURVES, never], [2.0] * 4, 0.05).at == pytest.approx(20 + 60 * 2.0 / 2.275)
    assert find_reach([*CURVES, *[never] * 3], [2.0] * 6, 0.05).at is None


def test_more_may_be_better():
    turned = [{place: -value for place, value in curve.items()} for curve in CURVES]
    assert find_reach(turned, [-goal for goal in GOALS], 0.05, maximize=True) == find_reach(CURVES, GOALS, 0.05)


def test_what_is_not_shown_has_no_upper_end():
    reach = find_reach([{50: 3.0, 100: value} for value in (1.9, 2.2, 2.0)], [2.1] * 3, 0.05)
    assert reach.at is not None
    assert reach.high is None
    worse = find_reach([{50: value + 1, 100: value} for value in (2.9, 2.95, 2.91)], [2.1] * 3, 0.05)
    assert (worse.at, worse.low, worse.high) == (None, 100, None)


def test_before_the_first_validation_nothing_is_known():
    reach = find_reach([{50: 1.0 + i / 100, 100: 0.9 + i / 100} for i in range(3)], [2.0] * 3, 0.05)
    assert (reach.at, reach.low, reach.high) == (50, 0.0, 50)


def test_one_validation_says_nothing():
    assert find_reach([{100: 1.0}] * 3, [2.0] * 3, 0.05) is None
    assert find_reach([], [], 0.05) is None
    assert find_reach([{50: 1.0, 100: 0.5}, {60: 1.0, 100: 0.5}], [2.0] * 2, 0.05) is None


def test_a_validation_that_is_not_finite_is_not_there_yet():
    curves = [{10: math.inf, 50: 3.0 + i / 100, 100: 1.0 + i / 100} for i in range(3)]
    reach = find_reach(curves, [2.0] * 3, 0.05)
    assert 50 < reach.low < reach.at < reach.high < 100


def test_where_equal_seeds_give_no_interval_the_next_validation_bounds_it():
    reach = find_reach([{50: 3.0, 80: 1.5 + i / 100, 100: 1.0 + i / 100} for i in range(3)], [2.0] * 3, 0.05)
    assert (reach.low, reach.high) == (0.0, 80)


@pytest.mark.parametrize(
    ("curve", "goal", "expected"),
    [
        ({10: 4.0, 20: 3.0, 30: 2.0}, 2.5, 25.0),
        ({10: 4.0, 20: 3.0}, 3.0, 20.0),
        ({10: 4.0, 20: 3.0, 30: 3.5, 40: 2.0}, 3.25, 30 + 10 * 0.25 / 1.5),
        ({10: 4.0}, 5.0, 10.0),
        ({10: 4.0, 20: 3.0}, 2.9, None),
        ({}, 1.0, None),
    ],
)
def test_where_one_curve_comes_to_a_goal(curve, goal, expected):
    found = find_time(curve, goal)
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("n", [6, 7, 10, 15])
def test_the_interval_of_the_median_is_that_of_the_sign_test(n):
    values = [float(i) for i in range(n)]
    found = bound_median(values, values)
    assert found.value == pytest.approx(statistics.median(values))
    kept = [m for m in range(n) if stats.binomtest(sum(v > m for v in values), n - 1).pvalue > 0.05]
    k = next(k for k in range(n) if stats.binom.cdf(k, n, 0.5) * 2 > 0.05)  # as tables: the k-th from either end
    assert (found.low, found.high) == (values[k - 1], values[n - k])
    assert kept[0] >= found.low


def test_seeds_that_never_get_there_have_the_last_ranks():
    found = bound_median([0.5, 0.6, 0.7, 0.8, 0.9, math.inf, math.inf], [0.5, 0.6, 0.7, 0.8, 0.9, math.inf, math.inf])
    assert (found.value, found.low, found.high) == (0.8, 0.5, math.inf)
    assert bound_median([0.5] * 5, [0.5] * 5).low is None  # five seeds have no such interval: 2 / 2^5 is above 5 %
    assert bound_median([0.0, 0.5, 0.6], [math.inf, 0.5, 0.6]).value == 0.6  # where neither is there, nothing is known
    assert bound_median([], []) is None


def test_the_baseline_must_be_behind_where_the_arm_is_there():
    assert is_behind([0.5, 0.6, 0.55], 0.05)
    assert not is_behind([0.5, -0.6, 0.55], 0.05)
    assert not is_behind([0.5, 0.6, 0.55], 0.0)
    assert not is_behind([], 0.05)
    assert is_behind([-0.5, -0.6, -0.55], 0.05, maximize=True)
