"""Looks, and how much of the error each may spend."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from ablate.verdict.looks import Looks, nominal_levels, plan_looks, sign_levels


def test_a_fixed_plan_spends_four_fifths_and_later_looks_half_of_the_rest():
    assert Looks((5,), 5).share_spent() == (pytest.approx(0.8),)
    assert Looks((5, 6, 8, 30), 5).share_spent() == pytest.approx((0.8, 0.9, 0.95, 0.975))
    half = 0.8 * math.log(1 + (math.e - 1) / 2)
    assert Looks((3, 6, 7), 6).share_spent() == pytest.approx((half, 0.8, 0.9))
    assert nominal_levels(Looks((5,), 5), 0.05) == pytest.approx((0.04,), rel=1e-3)


def test_a_look_at_no_new_seed_is_no_look():
    looks = Looks((3,), 5)
    assert looks.add(3) == looks
    assert looks.add(2) == looks
    assert looks.add(5) == Looks((3, 5), 5)
    assert plan_looks(3, 6) == Looks((3, 4, 5, 6), 6)
    assert plan_looks(5, 5) == Looks((5,), 5)


def test_looks_at_changed_values_have_shares_of_their_own():
    assert Looks((5,), 5, (5,)).share_spent() == pytest.approx((0.1,))
    assert Looks((5, 6), 5, (5,)).share_spent() == pytest.approx((0.1, 0.15))
    assert Looks((5, 6), 5, (5,)).taken == (5, 5, 6)


def test_the_error_where_a_look_leaves_out_the_worst_pair():
    """Simulated: a look at five pairs, one without the pair that is farthest from the others, one with it again."""
    x = np.random.default_rng(0).standard_normal((40_000, 5))
    worst = x.mean(1) > 0
    kept = np.where(worst[:, None], np.sort(x)[:, 1:], np.sort(x)[:, :-1])
    five, four = (
        nominal_levels(looks, 0.05, (n,))[-1] for looks, n in ((Looks((5,), 5), 5), (Looks((5,), 5, (5,)), 4))
    )
    found = (stats.ttest_1samp(x, 0, axis=1).pvalue < five) | (stats.ttest_1samp(kept, 0, axis=1).pvalue < four)
    assert (five, four) == (pytest.approx(0.04, rel=1e-3), pytest.approx(0.005, rel=1e-2))
    assert five < found.mean() < five + four + 0.003


@pytest.mark.parametrize("arguments", [((), 5), ((3, 3), 5), ((5, 3), 5), ((0, 3), 5), ((3,), 0), ((3,), 3, (0,))])
def test_looks_ascend(arguments):
    with pytest.raises(ValueError, match="1 or more"):
        Looks(*arguments)


def test_adding_seeds_by_hand_for_ever_never_spends_all():
    looks = Looks((3,), 3)
    for size in range(4, 30):
        looks = looks.add(size)
        assert looks.share_spent()[-1] < 1
    levels = nominal_levels(looks, 0.05)
    assert all(b < a for a, b in pairwise(levels))


def test_levels_of_earlier_looks_do_not_depend_on_later_ones():
    few, many = nominal_levels(Looks((3, 4), 12), 0.05), nominal_levels(Looks((3, 4, 7, 20), 12), 0.05)
    assert many[:2] == few
    assert sign_levels(Looks((8,), 8), 0.05, (6,)) == (2 / 64,)
