"""Trends over size: Behrens and Fisher's limits, what is claimed, and the exact test of failures by enumeration."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from ablate.addons.scaling.trends import bound_sum, find_failure_trend, find_limit, find_trend


@pytest.mark.parametrize("angle", [0.0, 0.3, 0.8, math.pi / 2])
@pytest.mark.parametrize("freedom", [(2, 2), (4, 2), (9, 4)])
def test_limits_are_those_of_two_t_variables(freedom, angle):
    draw = np.random.default_rng(0)
    t = [draw.standard_t(n, 400_000) for n in freedom]
    both = np.abs(math.sin(angle) * t[0] + math.cos(angle) * t[1])
    for level in (0.05, 0.01):
        assert np.mean(both > find_limit(level, freedom, math.sin(angle))) == pytest.approx(level, rel=0.06)


def test_two_sizes_of_the_same_spread_have_the_tabulated_limit():
    # Behrens-Fisher, 6 and 6 degrees of freedom, 45 degrees, 5 %: Fisher & Yates' table VI has 2.435
    assert find_limit(0.05, (6, 6), math.sqrt(0.5)) == pytest.approx(2.435, abs=1e-3)


@pytest.mark.parametrize(
    ("first", "last", "effect", "word"),
    [
        (-0.05, -0.15, None, "grows"),
        (-0.15, -0.05, None, "shrinks"),
        (-0.1, 0.1, None, "changes"),
        (-0.1, -0.1, None, "not shown"),
        (-0.1, -0.1, 0.05, "stays"),
    ],
)
def test_what_is_claimed_of_a_difference(first, last, effect, word):
    noise = 0.001 * np.array([[-1, 0.2, 0.9], [1.1, -0.3, -0.8]])
    found = find_trend([(first + noise[0]).tolist(), [], (last + noise[1]).tolist()], 0.01, effect)
    assert found.word == word
    assert found.sizes == (0, 2)


def test_two_seeds_and_seeds_that_are_alike_give_figures():
    assert find_trend([[0.1, 0.11], [0.3, 0.31]], 0.05).word == "figures"
    assert find_trend([[0.1] * 3, [0.3] * 3], 0.05).word == "figures"
    assert find_trend([[0.1, 0.2, 0.3], []], 0.05) is None
    assert bound_sum([0.1, 0.2], [0.3, 0.5], -1, 0.0).low is None


@pytest.mark.parametrize(("failed", "seeds"), [((0, 1, 3), (3, 3, 3)), ((2, 0, 1), (3, 2, 4)), ((0, 0, 4), (4, 4, 4))])
def test_the_trend_of_failures_is_that_of_all_ways_to_place_them(failed, seeds):
    scores = [k for k, n in enumerate(seeds) for _ in range(n)]
    mean = sum(failed) * np.mean(scores)
    totals = [abs(sum(way) - mean) for way in itertools.combinations(scores, sum(failed))]
    seen = abs(sum(k * f for k, f in enumerate(failed)) - mean)
    found = find_failure_trend(failed, seeds)
    assert found.p == pytest.approx(np.mean(np.array(totals) >= seen - 1e-9))
    assert found.smallest_p == pytest.approx(np.mean(np.array(totals) >= max(totals) - 1e-9))


def test_the_trend_of_two_sizes_is_fishers_exact_test_where_that_is_symmetric():
    assert find_failure_trend((0, 4), (5, 5)).p == pytest.approx(stats.fisher_exact([[0, 5], [4, 1]]).pvalue)
    assert find_failure_trend((0, 4), (5, 5)).rises


@pytest.mark.parametrize(("failed", "seeds"), [((0, 0), (3, 3)), ((3, 3), (3, 3)), ((0, 2), (0, 3))])
def test_without_failures_or_without_anything_else_there_is_no_test(failed, seeds):
    assert find_failure_trend(failed, seeds).p is None
