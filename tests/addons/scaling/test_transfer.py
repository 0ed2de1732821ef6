"""What is said of an arm over sizes, against truths that are known."""

import math

import pytest

from ablate.addons.scaling.transfer import bound_cost, choose_rate, compare_rates, judge_arm
from benchmarks.simulation.transfers import Truth, count_claims

LEVEL = 0.05
WIDTHS = (32, 64, 128)


def draw(bests, noise, curvature=0.04, failing=math.inf):
    """Return for each size three curves over rates 1/8 to 8, exact parabolas whose minima differ by `noise`."""
    return [
        {
            seed: {
                2.0**k: None if k > failing else 2 + 0.1 * seed + curvature * (k - best - shift) ** 2
                for k in range(-3, 4)
            }
            for seed, shift in enumerate(noise)
        }
        for best in bests
    ]


def judge(sizes, places, effect):
    """What is shown of one arm."""
    return judge_arm(sizes, compare_rates(sizes[0], sizes[-1]), places, LEVEL, effect)


def test_the_slope_is_that_of_the_logarithm_of_the_rate_over_that_of_the_size():
    one = judge(draw((0.5, 0.0, -0.5), (-0.1, 0.0, 0.1)), WIDTHS, None)
    assert one.slope.mean == pytest.approx(-0.5)
    assert one.moves == 0  # the seeds move alike, and equal slopes do not show their variation
    assert one.slope.interval is None


def test_a_slope_that_every_seed_shows_is_a_movement():
    sizes = draw((0.5, 0.0, -0.5), (-0.1, 0.0, 0.1))
    sizes[2] = draw((-0.5,), (-0.2, 0.0, 0.15))[0]
    one = judge(sizes, WIDTHS, None)
    slopes = [-0.55, -0.5, -0.475]  # half of the change from the first to the last of three equally spaced sizes
    assert one.slope.mean == pytest.approx(sum(slopes) / 3)
    assert one.moves == -1


def test_an_edge_leaves_no_slope():
    one = judge(draw((0.5, 0.0, -4), (-0.1, 0.0, 0.1)), WIDTHS, None)
    assert one.slope is None
    assert one.moves == 0


def test_the_cost_is_the_loss_at_the_rate_chosen_at_the_smallest_size():
    small, large = draw((1.0, -1.0), (0.0, 0.05, -0.05))
    cost = bound_cost(compare_rates(small, large), LEVEL)
    by_hand = [0.04 * ((1 - (-1 + s)) ** 2 - (-1 - (-1 + s)) ** 2) for s in (0.0, 0.05, -0.05)]
    assert cost.estimate.mean == pytest.approx(sum(by_hand) / 3)
    assert not cost.rates.same
    assert judge([small, large], (32, 64), 0.05).word == "costs"


def test_the_same_rate_costs_nothing_and_holds_only_where_it_is_said_what_matters():
    small, large = draw((0.2, 0.1), (0.0, 0.05, -0.05))
    cost = bound_cost(compare_rates(small, large), LEVEL)
    assert cost.rates.same
    assert cost.estimate.mean == 0
    assert judge([small, large], (32, 64), 0.05).word == "holds"
    assert judge([small, large], (32, 64), None).word == "undecided"


@pytest.mark.parametrize(("bests", "word"), [((4, 4), "undecided"), ((0.2, 4), "costs"), ((4, 0.2), "undecided")])
def test_at_an_edge_the_best_rate_is_not_known(bests, word):
    small, large = draw(bests, (0.0, 0.05, -0.05))
    assert judge([small, large], (32, 64), 0.05).word == word


def test_the_judged_seed_does_not_choose():
    flat = {seed: dict.fromkeys((1.0, 2.0), 2.0) for seed in (1, 2, 3)}
    lucky = {**flat, 3: {1.0: 2.0, 2.0: 1.0}}  # one seed's luck at one rate
    assert choose_rate(lucky) == 2.0
    assert choose_rate(lucky, without=3) == 1.0
    cost = bound_cost(compare_rates(flat, lucky), LEVEL)
    assert cost.estimate.mean == 0.0  # judged by the seeds that chose it, it would be a third of a nat


def test_a_rate_at_which_seeds_fail_does_not_hold():
    small = draw((2.0,), (0.0, 0.05, -0.05))[0]
    large = draw((0.0,), (0.0, 0.05, -0.05), failing=1)[0]
    one = judge([small, large], (32, 64), 0.05)
    assert (one.cost.rates.failed, one.cost.rates.other_failed) == (3, 0)
    assert one.cost.estimate is None
    assert one.word == "undecided"  # three seeds cannot show it: p = 0.25
    eight = dict(enumerate(draw((2.0,), [0.0] * 8)[0].values()))
    failing = dict(enumerate(draw((0.0,), [0.0] * 8, failing=1)[0].values()))
    assert judge([eight, failing], (32, 64), 0.05).word == "fails more often"


def test_two_sizes_that_never_train_do_not_hold():
    failed = {seed: dict.fromkeys((0.5, 1.0, 2.0)) for seed in (1, 2, 3)}
    one = judge([failed, failed], (32, 64), 0.05)
    assert one.cost is None
    assert one.word == "undecided"


@pytest.mark.parametrize(
    "truth",
    [Truth(own=0.02), Truth(own=0.05), Truth(wandering=0.5), Truth(skew=2), Truth(cliff=1.0, skew=2, own=0.02)],
    ids=["noisy", "very noisy", "each seed its own", "skewed", "a cliff beside it"],
)
@pytest.mark.parametrize("seeds", [3, 5])
def test_a_rate_that_stays_is_rarely_said_to_move_or_to_cost(truth, seeds):
    claims = count_claims(truth, seeds, arms=1, times=1000)
    allowed = 25 + 3 * math.sqrt(25)  # 2.5 % of a thousand each, and three standard deviations of the count
    assert claims["missed"] <= allowed
    assert claims["rises"] + claims["falls"] <= allowed
    assert claims["costs"] <= allowed


def test_a_curve_that_changes_its_form_is_not_said_to_move():
    """Its minimum is the same at every width, and that of the parabola moves: the interval misses the truth."""
    claims = count_claims(Truth(sharpening=4), 5, arms=1, times=300)
    assert claims["missed"] > 0.9 * claims["slopes"]
    assert claims["rises"] + claims["falls"] == 0
    assert claims["costs"] == 0


@pytest.mark.parametrize("slope", [-0.5, -1.0])
def test_a_rate_that_moves_is_found_and_rarely_said_to_hold(slope):
    claims = count_claims(Truth(slope=slope, own=0.01), 5, arms=7, times=300)
    assert claims["falls"] > 0.8 * 300
    assert claims["rises"] == 0
    assert claims["holds"] <= 0.05 * 300
