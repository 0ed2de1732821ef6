"""Levels of repeated tests, against published constants, enumeration and simulated t-tests."""

from itertools import product

import numpy as np
import pytest
from scipy import special, stats

from ablate.verdict.looks import Looks, nominal_levels
from ablate.verdict.sequential import EDGES, _central, _transition, find_crossing, find_levels, find_sign_levels


@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_the_closed_form_of_students_distribution(n):
    w = np.linspace(-4, 4, 9)
    assert (1 + _central(w, n)) / 2 == pytest.approx(stats.t.cdf(w * np.sqrt(n), n), rel=1e-10)


@pytest.mark.parametrize("n", [2, 3, 7])
def test_one_more_seed_leaves_the_distribution_of_t_as_it_is(n):
    tail = 1 - _transition(n) @ -np.diff(EDGES)
    inner = (EDGES > 1e-4) & (EDGES < 0.5)
    assert tail[inner] == pytest.approx(EDGES[inner], rel=0.006)


def test_pocock_constants_for_many_pairs():
    """Jennison & Turnbull (2000), table 2.1: Z of Pocock's tests at 5 %."""
    for looks, z in ((2, 2.178), (3, 2.289), (5, 2.413)):
        level = 2 * special.ndtr(-z)
        few, many = (find_crossing([n * (i + 1) for i in range(looks)], [level] * looks) for n in (8, 16))
        assert 0.05 < many < few < 0.053
        assert 2 * many - few == pytest.approx(0.05, abs=5e-4)  # t-tests near them as 1 / n


def test_lan_and_demets_boundaries_for_many_pairs():
    """Spending 5 % by ln(1 + (e - 1) t) at five equal looks: as printed by Lan and DeMets' program (Reboussin et al.
    2000, Controlled Clinical Trials 21, 190-207)."""
    spent = [0.05 * np.log1p((np.e - 1) * i / 5) for i in range(1, 6)]
    levels = find_levels([16 * i for i in range(1, 6)], spent)
    z = -special.ndtri(np.array(levels) / 2)
    assert z == pytest.approx([2.4380, 2.4268, 2.4101, 2.3966, 2.3859], abs=0.018)
    assert (z[1:] > [2.4268, 2.4101, 2.3966, 2.3859]).all()  # t-tests need a little more


def test_looking_after_each_of_three_to_ten_seeds():
    """The figures that called for this, both from simulations: 16.7 % at 5 %, 4.9 % at 1.2 %."""
    assert find_crossing(range(3, 11), [0.05] * 8) == pytest.approx(0.167, abs=0.002)
    assert find_crossing(range(3, 11), [0.012] * 8) == pytest.approx(0.049, abs=0.002)


SIMULATED = 400_000


@pytest.fixture(scope="module")
def p_values():
    """[simulation, n]: the two-sided p-value of the t-test over the first n of twelve normal values."""
    x = np.random.default_rng(0).standard_normal((SIMULATED, 12))
    n = np.arange(1, 13)
    mean = np.cumsum(x, 1) / n
    p = np.ones((SIMULATED, 13))
    for k in n[2:]:
        sd = np.sqrt((np.cumsum(x**2, 1)[:, k - 1] - k * mean[:, k - 1] ** 2) / (k - 1))
        p[:, k] = 2 * special.stdtr(k - 1, -np.abs(mean[:, k - 1]) / sd * np.sqrt(k))
    return p


@pytest.mark.parametrize(
    ("sizes", "planned"),
    [(range(3, 11), 10), (range(3, 13), 12), ((5,), 5), (range(5, 13), 5), ((3, 5, 8), 8), ((2, 3, 4, 9), 6)],
)
@pytest.mark.parametrize("comparisons", [1, 3, 7])
def test_t_tests_spend_what_they_may_and_no_more(sizes, planned, comparisons, p_values):
    looks, alpha = Looks(tuple(sizes), planned), 0.05 / comparisons
    levels = nominal_levels(looks, alpha)
    crossed = np.zeros(SIMULATED, bool)
    for size, level, share in zip(looks.sizes, levels, looks.share_spent(), strict=True):
        crossed |= p_values[:, size] < level
        error = 4 * np.sqrt(share * alpha / SIMULATED)
        assert (size < 3 and level == 0) or crossed.mean() == pytest.approx(share * alpha, abs=error)
    assert crossed.mean() <= 1.04 * alpha
    assert find_crossing([n for n in sizes if n > 2], [level for level in levels if level]) == pytest.approx(
        looks.share_spent()[-1] * alpha, rel=0.001
    )


def test_seeds_that_fail_leave_the_error_where_it_was(p_values):
    """Given which seeds trained: a look without a new pair, and looks with too few pairs."""
    pairs = (1, 2, 4, 4, 7)
    looks = Looks((3, 4, 6, 7, 10), 10)
    levels = nominal_levels(looks, 0.05, pairs)
    assert levels[:2] == (0.0, 0.0)
    assert levels[2] < levels[3]  # the same four pairs, with more to spend
    crossed = np.any([p_values[:, n] < level for n, level in zip(pairs, levels, strict=True)], axis=0)
    assert crossed.mean() == pytest.approx(0.04, abs=4 * np.sqrt(0.04 / SIMULATED))


@pytest.mark.parametrize("discordant", [(6,), (5, 6, 8), (3, 6, 6, 9, 10), (0, 0, 7)])
def test_sign_tests_by_enumeration(discordant):
    spent = [0.05 * (i + 1) / len(discordant) for i in range(len(discordant))]
    levels = find_sign_levels(discordant, spent)
    p = {(k, d): stats.binomtest(k, d).pvalue if d else 1.0 for d in set(discordant) for k in range(d + 1)}
    rejected = []
    for signs in product((0, 1), repeat=discordant[-1]):
        rejected.append([p[sum(signs[:d]), d] <= v + 1e-12 for d, v in zip(discordant, levels, strict=True)])
    so_far = np.maximum.accumulate(np.array(rejected), axis=1).mean(0)
    assert (so_far <= np.array(spent) + 1e-12).all()
    assert so_far[-1] > 0


def test_sign_levels_by_hand():
    """Six discordant seeds: 2 / 64 = 0.031. Five cannot: 2 / 32 = 0.0625."""
    assert find_sign_levels((6,), (0.05,)) == (2 / 64,)
    assert find_sign_levels((5,), (0.05,)) == (0.0,)
    assert find_sign_levels((6,), (0.03,)) == (0.0,)
    assert find_sign_levels((9,), (0.05,)) == (pytest.approx(20 / 512),)  # at most 1 of 9
