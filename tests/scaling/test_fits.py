"""Curves and trends on losses whose truth is known, and how often their intervals hold it."""

import numpy as np
import pytest
from scipy import optimize

from ablate.scaling.fits import FLOOR, STRAIGHT, Resampler

SIZES = [1e6, 4e6, 1.6e7, 6.4e7]


def measured(curve, sizes=SIZES, seeds=3, noise=0.0, shared=0.0, generator=None, common=None):
    """For each size: seed -> loss."""
    generator = generator or np.random.default_rng(0)
    found = []
    for k, n in enumerate(sizes):
        own = noise * generator.standard_normal(seeds)
        both = shared * common[k] if common is not None else np.zeros(seeds)
        found.append({s: curve(n) + own[s] + both[s] for s in range(seeds)})
    return found


def resampler(sizes=SIZES, seeds=3, draws=1000):
    return Resampler(sizes, [range(seeds)] * len(sizes), draws)


def power(a, b, c):
    return lambda n: a + b * (n / 1e6) ** -c


def test_without_noise_a_curve_with_a_floor_is_found_from_four_sizes_on():
    found = resampler().fit_curve(measured(power(1.8, 1.5, 0.3)))
    assert found.form == FLOOR
    assert found.coefficients[0] == pytest.approx([1.8, 1.5, 0.3], rel=0.03)  # the grid of exponents has steps of 2 %
    assert found.at(1e9).value == pytest.approx(power(1.8, 1.5, 0.3)(1e9), abs=0.01)


def test_with_fewer_sizes_it_is_a_straight_line_in_the_logarithms():
    found = resampler(SIZES[:3]).fit_curve(measured(power(0, 3.0, 0.07), SIZES[:3]))
    assert found.form == STRAIGHT
    assert found.at(1e9).value == pytest.approx(3.0 * 1000**-0.07)
    assert found.at(SIZES[1]).value == pytest.approx(3.0 * 4**-0.07)


def test_the_fit_is_that_of_a_general_optimizer():
    generator = np.random.default_rng(3)
    losses = measured(power(2.0, 1.0, 0.4), noise=0.01, generator=generator)
    found = resampler().fit_curve(losses)
    x, y = np.array(SIZES) / 1e6, np.array([np.mean(list(by_seed.values())) for by_seed in losses])
    best, _ = optimize.curve_fit(lambda x, a, b, c: a + b * x**-c, x, y, p0=[1.5, 1.0, 0.5], bounds=(0, 10))
    for n in (2e6, 6.4e7, 1e8):
        assert found.at(n).value == pytest.approx(best[0] + best[1] * (n / 1e6) ** -best[2], abs=2e-3)


@pytest.mark.parametrize(
    ("gap", "word"), [(lambda n: -0.05 * np.log10(n / 1e5), "grows"), (lambda n: -0.1, "stays"),
                      (lambda n: -0.3 + 0.1 * np.log10(n / 1e6), "shrinks")],
)  # fmt: skip
def test_a_difference_grows_shrinks_or_stays(gap, word):
    generator = np.random.default_rng(5)
    base = measured(power(2, 1, 0.3), noise=0.003, generator=generator)
    arm = measured(lambda n: power(2, 1, 0.3)(n) + gap(n), noise=0.003, generator=generator)
    found = resampler().fit_trend(arm, base)
    assert found.describe(SIZES[-1]) == word
    assert found.slope.value == pytest.approx((gap(1e8) - gap(1e6)) / 2, abs=0.01)


def test_differences_are_paired_by_seed_and_a_missing_seed_leaves_its_pair_out():
    generator = np.random.default_rng(1)
    common = generator.standard_normal((4, 3))
    base = measured(power(2, 1, 0.3), shared=0.5, common=common)
    arm = measured(lambda n: power(2, 1, 0.3)(n) - 0.1, shared=0.5, common=common)
    del arm[2][1]
    slope = resampler().fit_trend(arm, base).slope
    assert (slope.value, slope.low, slope.high) == pytest.approx((0, 0, 0), abs=1e-9)


def test_a_size_without_seeds_is_left_out_and_one_seed_gives_no_interval():
    losses = measured(power(0, 3, 0.1), seeds=1)
    found = resampler(seeds=1).fit_curve([*losses[:2], {}, losses[3]])
    assert found.form == STRAIGHT
    assert (found.at(1e9).low, found.at(1e9).high) == (None, None)
    assert found.at(1e9).value == pytest.approx(3 * 1000**-0.1)
    with pytest.raises(ValueError, match="two sizes"):
        resampler().fit_curve([losses[0], {}, {}, {}])


@pytest.mark.parametrize("count", [3, 4])
def test_the_intervals_hold_the_truth_as_often_as_they_say(count):
    """Ladders of three seeds, noise of the seed shared by both arms and noise of each training's own."""
    sizes, generator, trials = SIZES[:count], np.random.default_rng(11), 300 if count == 3 else 100
    truth = power(0, 3.0, 0.07) if count == 3 else power(2.0, 1.0, 0.4)
    held = {"slope": 0, "difference": 0, "loss": 0}
    for _ in range(trials):
        common = generator.standard_normal((count, 3))
        base = measured(truth, sizes, noise=0.01, shared=0.02, generator=generator, common=common)
        arm = measured(
            lambda n: truth(n) - 0.02 - 0.01 * np.log10(n / 1e6),
            sizes, noise=0.01, shared=0.02, generator=generator, common=common,
        )  # fmt: skip
        found = resampler(sizes, draws=500)
        trend = found.fit_trend(arm, base)
        at = 2 * sizes[-1]
        held["slope"] += trend.slope.low <= -0.01 <= trend.slope.high
        end = trend.at(1e9)
        held["difference"] += end.low <= -0.05 <= end.high
        loss = found.fit_curve(base).at(at)
        held["loss"] += loss.low <= truth(at) <= loss.high
    shares = {name: number / trials for name, number in held.items()}
    assert all(0.91 <= share <= 0.99 for share in shares.values()), shares
