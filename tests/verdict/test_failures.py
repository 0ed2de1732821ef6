"""Failure shares and their comparison, against scipy's exact tests and by hand."""

import pytest
from scipy import stats

from ablate.verdict.failures import bound_share, compare_failures, count_failures, count_family, smallest_p
from ablate.verdict.outcomes import Outcome

TRAINED, STUCK, DIVERGED = Outcome("trained", 2.0), Outcome("stuck", 5.0), Outcome("diverged")


@pytest.mark.parametrize(("failed", "n"), [(1, 3), (2, 5), (3, 12), (11, 12)])
def test_intervals_are_clopper_and_pearsons(failed, n):
    theirs = stats.binomtest(failed, n).proportion_ci(0.95, "exact")
    assert bound_share(failed, n) == pytest.approx((theirs.low, theirs.high), rel=1e-9)


def test_none_and_all_have_one_side():
    assert bound_share(0, 3) == (0.0, pytest.approx(0.6316, abs=1e-4))
    assert bound_share(3, 3) == (pytest.approx(0.3684, abs=1e-4), 1.0)
    theirs = stats.binomtest(0, 7, alternative="less").proportion_ci(0.95, "exact")
    assert bound_share(0, 7)[1] == pytest.approx(theirs.high)


@pytest.mark.parametrize(("ours", "theirs"), [(6, 0), (0, 1), (3, 3), (2, 7), (9, 1)])
def test_arms_are_compared_by_the_exact_sign_test(ours, theirs):
    assert compare_failures(ours, theirs) == pytest.approx(stats.binomtest(ours, ours + theirs).pvalue)
    assert compare_failures(ours, theirs) >= smallest_p(ours + theirs) - 1e-12


def test_seeds_are_counted_and_told():
    share = count_failures([TRAINED, STUCK, DIVERGED, DIVERGED, TRAINED])
    assert (share.diverged, share.stuck, share.failed, share.n) == (2, 1, 3, 5)
    assert share.describe() == "3 of 5 seeds (2 diverged, 1 stuck; 15 to 95 %)"
    assert count_failures([TRAINED] * 3).describe() == "0 of 3 seeds (up to 63 %, one-sided 95 %)"
    assert count_failures([STUCK] * 3).describe() == "3 of 3 seeds (3 stuck; at least 37 %, one-sided 95 %)"
    assert count_failures([]) is None


def test_comparisons_of_failures_count_where_they_can_reach_the_level():
    """Six discordant seeds reach 0.031: not 5 % / 2, so of two means and one such, two or three share the error."""
    assert count_family(3, []) == 3
    assert count_family(3, [0, 1, 5]) == 3
    assert count_family(1, [5]) == 1  # 0.0625 reaches nothing
    assert count_family(1, [6]) == 2  # 0.031 would reach 5 %, were it not to share it
    assert count_family(2, [6]) == 2
    assert count_family(2, [8, 8]) == 4
    assert count_family(0, []) == 1
