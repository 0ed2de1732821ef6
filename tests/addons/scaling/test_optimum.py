"""The best learning rate of a seed and of a size, against parabolas written out by hand."""

import math

import pytest
from scipy.stats import t

from ablate.addons.scaling.optimum import find_optimum, find_seed_optimum, read_curves
from ablate.verdict.outcomes import Outcome

RATES = [2.0**k for k in range(-3, 4)]


def parabola(best, curvature=0.04, failing=()):
    return {
        rate: None if rate in failing else 2 + curvature * (math.log2(rate) - best) ** 2 for rate in RATES
    }  # fmt: skip


@pytest.mark.parametrize("best", [-1.4, -0.5, 0.0, 0.3, 1.49])
def test_the_minimum_of_a_parabola_is_found_between_the_rates(best):
    optimum = find_seed_optimum(parabola(best))
    assert optimum.log_rate == pytest.approx(best, abs=1e-9)
    assert optimum.edge is None
    assert not optimum.rounded


def test_rates_need_not_be_equally_far_apart():
    curve = {rate: 2 + (math.log2(rate) - 1.2) ** 2 for rate in (0.5, 1.0, 3.0, 16.0)}
    assert find_seed_optimum(curve).log_rate == pytest.approx(1.2)


@pytest.mark.parametrize(("best", "edge"), [(-5, "lowest"), (5, "highest")])
def test_a_lowest_loss_at_the_end_is_an_edge(best, edge):
    optimum = find_seed_optimum(parabola(best))
    assert optimum.edge == edge
    over_seeds = find_optimum({1: parabola(best), 2: parabola(0.1), 3: parabola(0.2)})
    assert over_seeds.at_edge == 1
    assert over_seeds.edges == [edge]
    assert over_seeds.rate is not None
    assert over_seeds.interval is None


def test_beside_a_failure_the_rate_of_the_grid_stands():
    optimum = find_seed_optimum(parabola(0.3, failing=[2.0, 4.0, 8.0]))
    assert optimum.log_rate == 0.0
    assert optimum.edge is None
    assert optimum.rounded
    equal = find_optimum({seed: parabola(0.3, failing=[2.0, 4.0, 8.0]) for seed in (1, 2, 3)})
    half = t.ppf(0.975, 2) / math.sqrt(12) / math.sqrt(3)  # one step of the grid, uniformly rounded
    assert equal.log_rate.half_width == pytest.approx(half)


def test_a_seed_that_fails_everywhere_has_no_best_rate():
    failed = dict.fromkeys(RATES)
    assert find_seed_optimum(failed) is None
    assert find_optimum({1: failed}).rate is None


def test_the_interval_over_seeds_is_students_of_the_logarithms():
    bests = [0.1, 0.3, 0.35]
    optimum = find_optimum({seed: parabola(best) for seed, best in enumerate(bests)})
    mean = sum(bests) / 3
    half = t.ppf(0.975, 2) * math.sqrt(sum((b - mean) ** 2 for b in bests) / 2 / 3)
    assert optimum.rate == pytest.approx(2**mean)
    assert optimum.interval == pytest.approx((2 ** (mean - half), 2 ** (mean + half)))


def test_curves_are_those_of_seeds_that_ended_at_every_rate():
    outcomes = {
        0.1: {1: Outcome("trained", 2.0), 2: Outcome("trained", 2.1)},
        0.2: {1: Outcome("stuck", 3.2)},
    }
    assert read_curves(outcomes) == {1: {0.1: 2.0, 0.2: None}}
