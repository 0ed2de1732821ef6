"""Curves on losses whose truth is known, what they may be asked, and how their draws over seeds vary."""

import numpy as np
import pytest
from scipy import optimize, stats

from ablate.addons.scaling.fits import SeedDraws, fit_curve, fit_gap

SIZES = [1e6, 4e6, 1.6e7, 6.4e7]
DRAWS = SeedDraws(1000)


def power(a, b, c):
    return lambda n: a + b * (n / 1e6) ** -c


def measure(curve, sizes=SIZES, seeds=3, noise=0.0, generator=None):
    """For each size: seed -> loss."""
    generator = generator or np.random.default_rng(0)
    return [dict(enumerate(curve(n) + noise * generator.standard_normal(seeds))) for n in sizes]


def test_without_noise_a_curve_with_a_floor_is_found_from_four_sizes_on():
    found = fit_curve(SIZES, measure(power(1.8, 1.5, 0.3)), DRAWS)
    assert found.has_floor
    assert found.coefficients[0] == pytest.approx([1.8, 1.5, 0.3], rel=0.03)  # the grid of exponents has steps of 2 %
    assert found.at(1e9).value == pytest.approx(power(1.8, 1.5, 0.3)(1e9), abs=0.01)
    assert found.at(1e9).low is None  # seeds that all came to the same say nothing of how they vary


def test_fewer_than_four_sizes_have_no_curve():
    losses = measure(power(1.8, 1.5, 0.3), noise=0.01)
    assert fit_curve(SIZES[:3], losses[:3], DRAWS) is None
    assert fit_curve(SIZES, [*losses[:2], {}, losses[3]], DRAWS) is None
    assert fit_gap(SIZES, losses, [*losses[:3], {9: 2.0}], DRAWS) is None


def test_a_curve_without_a_floor_says_nothing_beyond_its_sizes():
    concave = fit_curve(SIZES, measure(lambda n: 3 - 0.1 * np.log10(n / 1e6) ** 2, noise=0.001), DRAWS)
    assert not concave.has_floor
    assert concave.reaches(2e6)
    assert not concave.reaches(1e9)


def test_the_fit_is_that_of_a_general_optimizer():
    losses = measure(power(2.0, 1.0, 0.4), noise=0.01, generator=np.random.default_rng(3))
    found = fit_curve(SIZES, losses, DRAWS)
    x, y = np.array(SIZES) / 1e6, np.array([np.mean(list(by_seed.values())) for by_seed in losses])
    best, _ = optimize.curve_fit(lambda x, a, b, c: a + b * x**-c, x, y, p0=[1.5, 1.0, 0.5], bounds=(0, 10))
    for n in (2e6, 6.4e7, 1e8):
        assert found.at(n).value == pytest.approx(best[0] + best[1] * (n / 1e6) ** -best[2], abs=2e-3)


def test_the_draws_of_a_mean_have_its_t_interval():
    values = dict(enumerate([1.0, 1.3, 0.9, 1.25]))
    drawn = SeedDraws(200_000).draw_mean(0, values)
    v = list(values.values())
    for level in (0.05, 0.01):
        low, high = stats.t.interval(1 - level, 3, np.mean(v), stats.sem(v))
        assert np.quantile(drawn[1:], [level / 2, 1 - level / 2]) == pytest.approx([low, high], abs=0.03)


def test_arms_on_the_same_seeds_are_drawn_alike_and_sizes_apart():
    draws = SeedDraws(500)
    one = {3: 1.0, 4: 1.4, 5: 0.7}
    other = {seed: value - 0.25 for seed, value in one.items()}
    assert draws.draw_mean(0, one) - draws.draw_mean(0, other) == pytest.approx(np.full(501, 0.25))
    assert abs(np.corrcoef(draws.draw_mean(0, one)[1:], draws.draw_mean(1, one)[1:])[0, 1]) < 0.2


def test_a_difference_is_fitted_to_the_seeds_on_which_both_trained():
    generator = np.random.default_rng(1)
    base = measure(power(2, 1, 0.3), noise=0.02, generator=generator, seeds=4)
    arm = [{s: v - 0.1 + 0.001 * generator.standard_normal() for s, v in by_seed.items()} for by_seed in base]
    del arm[2][1]
    found = fit_gap(SIZES, arm, base, DRAWS).at(SIZES[2])
    assert found.value == pytest.approx(-0.1, abs=0.003)
    assert found.high - found.low < 0.02  # the noise of a seed is the same for both and leaves the difference


def test_fewer_than_three_seeds_at_a_size_give_a_figure_without_an_interval():
    losses = measure(power(2, 1, 0.3), noise=0.01)
    del losses[1][0]
    found = fit_curve(SIZES, losses, DRAWS).at(1e8)
    assert (found.low, found.high) == (None, None)
    assert found.value == pytest.approx(power(2, 1, 0.3)(1e8), abs=0.1)
