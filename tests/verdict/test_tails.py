"""The sign test and the tail of paired differences, against scipy and formulas written out here; and what is claimed
of arms whose noise has a tail."""

import numpy as np
import pytest
from scipy import stats

from ablate.verdict.comparison import FreshOutcomes, compare
from ablate.verdict.looks import Looks
from ablate.verdict.outcomes import Outcome
from ablate.verdict.statements import state_verdict
from ablate.verdict.summary import summarise
from ablate.verdict.tails import FARTHEST, ROBUST, SKEWS, describe_typical

TEN = [-0.10, -0.12, -0.08, -0.11, -0.09, -0.13, -0.07, -0.10, -0.11, 1.5]
"""Better on nine seeds, and far worse on the tenth."""


def describe(values, planned=None, alpha=0.05, **more):
    n = len(values)
    return describe_typical(values, Looks((n,), planned or n), (n,), alpha, **more)


def judge(differences, effect=None, sizes=None, planned=None, maximize=False, base=2.0):
    n = len(differences)
    looks = Looks(tuple(sizes or (n,)), planned or n)
    arms = {
        "pre": FreshOutcomes({i: Outcome("trained", base) for i in range(n)}, looks=looks),
        "mix": FreshOutcomes({i: Outcome("trained", base + d) for i, d in enumerate(differences)}, looks=looks),
    }
    return compare(arms, "pre", planned=n, effect=effect, maximize=maximize)


def test_the_sign_test_is_the_binomial_one_and_leaves_out_ties():
    one = describe([0.1, 0.2, -0.1, 0.3, 0.0, 0.2, 0.1, 0.4, 0.0, 0.2])
    assert (one.above, one.below, one.p) == (7, 1, pytest.approx(stats.binomtest(7, 8).pvalue))
    assert describe([0.0] * 4).p is None
    assert describe(TEN).level == pytest.approx(22 / 1024)  # 9 of 10, at 0.6 of 4 %
    assert describe(TEN, alpha=0.05 / 3).level == pytest.approx(2 / 1024)


def test_the_interval_of_the_median_holds_two_of_the_ordered_differences():
    one = describe(TEN)
    assert one.interval == (sorted(TEN)[1], sorted(TEN)[8])
    assert describe(TEN[:5]).interval is None  # 5 of 5 do not reach 5 %
    assert one.agreeing == (sorted(TEN)[2], sorted(TEN)[7])  # 8 of 10


def test_skew_and_the_farthest_pair_by_their_formulas():
    one, values = describe(TEN), np.array(TEN)
    assert one.skew == pytest.approx(np.sqrt(10) * (values.mean() - np.median(values)) / values.std(ddof=1))
    mad = np.median(np.abs(values - np.median(values)))
    assert one.farthest == pytest.approx((1.5 - np.median(values)) / (ROBUST * mad))
    assert (one.tail, describe([-d for d in TEN]).tail, describe(TEN[:9]).tail) == (1, -1, 0)
    assert (describe([0.1] * 5).skew, describe([0.1] * 5).tail) == (None, 0)
    assert describe([0.1, 0.1, 0.1, 0.1, 0.2]).farthest is None  # most are equal
    assert describe([0.1, 0.1, 0.1, 0.1, 0.2], least_sd=0.1).tail == 0


@pytest.mark.parametrize("n", [5, 10, 30])
def test_the_limits_are_exceeded_by_5_percent_of_normal_differences(n):
    x = np.random.default_rng(3).standard_normal((40_000, n))
    middle = np.median(x, 1)
    skew = np.sqrt(n) * np.abs(x.mean(1) - middle) / x.std(1, ddof=1)
    far = np.abs(x - middle[:, None])
    assert np.mean(skew > SKEWS[n - 3]) == pytest.approx(0.05, abs=0.004)
    assert np.mean(far.max(1) / (ROBUST * np.median(far, 1)) > FARTHEST[n - 3]) == pytest.approx(0.05, abs=0.004)


def test_a_tail_leaves_a_claim_about_most_seeds():
    compared = judge(TEN)
    c = compared["mix"]
    assert (c.kind, c.versus.side, c.versus.on_average, c.versus.difference.sign) == (
        "better on most seeds",
        -1,
        False,
        0,
    )
    assert c.name_kind() == "better on 9 of 10 seeds; on average not shown"
    assert c.decided
    text = state_verdict(compared, "pre", unit="nats")
    assert "mix is better than pre on 9 of 10 seeds; on average not shown, as a tail shows in the differences" in text
    assert "their median is -0.10, their mean +0.06 ± " in text
    assert "holds on average" not in text
    told = summarise(compared, {"": ["pre", "mix"]}, names={"pre": "pre", "mix": "mix"}, baseline="pre", unit="nats")
    assert told.endswith("mix (9 of 10 seeds) is better than pre on most seeds (on average not shown).")
    plain = c.to_dict()["versus"]
    assert (plain["side"], plain["on_average"], plain["typical"]["above"]) == (-1, False, 1)
    assert judge(TEN, maximize=True)["mix"].kind == "worse on most seeds"


def test_a_tail_on_the_side_of_the_mean_carries_it_and_one_on_the_other_side_leaves_most_seeds():
    carried = judge([-0.3, -0.1, 0.2, 0.2, 0.3, 0.9, 1.3, 2.8, 3.7, 4.3])
    v = carried["mix"].versus
    assert (v.difference.sign, v.typical.tail, v.typical.p <= v.typical.agrees_at) == (1, 1, True)
    assert carried["mix"].kind == "undecided"
    assert "but mix is worse on 8 of 10 seeds: a tail carries the mean" in state_verdict(carried, "pre", unit="nats")
    across = judge([-0.10, -0.12, -0.08, -0.11, -0.09, -0.13, -0.07, -0.10, -0.11, 0.10])["mix"]
    assert (across.versus.difference.sign, across.kind) == (-1, "better on most seeds")


def test_without_a_tail_the_interval_needs_the_seeds():
    even = [-0.10, -0.12, -0.08, -0.11, -0.09, -0.13, -0.07, -0.10, -0.11, -0.12]
    compared = judge(even)
    assert (compared["mix"].kind, compared["mix"].versus.on_average) == ("better", True)
    told = state_verdict(compared, "pre", unit="nats")
    assert "A typical seed is the median over seeds; the interval of a mean assumes" in told
    assert "distributed normally" not in told
    few = state_verdict(judge(even[:5]), "pre", unit="nats")
    assert "What is claimed of mix also assumes that differences are distributed normally" in few


def test_what_the_sign_test_does_not_show_alone_assumes_normal_differences():
    """8 of 10 agree with the interval (p = 0.11), and are no test at 5 % themselves."""
    compared = judge([-0.30, -0.28, -0.25, -0.22, -0.33, -0.27, -0.24, -0.20, 0.01, 0.02])
    assert compared["mix"].kind == "better"
    assert stats.binomtest(8, 10).pvalue > compared["mix"].versus.level
    assert "What is claimed of mix also assumes" in state_verdict(compared, "pre", unit="nats")
    carried = [-0.01, -0.02, -0.01, -0.02, 1.0, 1.1, 0.9, 1.05, 1.0, 0.95]
    one = judge(carried)
    assert (one["mix"].versus.difference.sign, one["mix"].kind) == (1, "undecided")
    assert ", but mix is worse on 6 of 10 seeds: not on enough of them" in state_verdict(one, "pre", unit="nats")


def test_three_or_four_pairs_need_one_sign_and_the_last_planned_look():
    few = [-0.10, -0.11, -0.105, -0.10]
    assert judge(few)["mix"].kind == "better"
    assert judge(few, planned=12)["mix"].kind == "undecided"
    assert "on 4 of 4 seeds, too few while more are planned" in state_verdict(
        judge(few, planned=12), "pre", unit="nats"
    )


def test_equivalence_is_of_a_typical_seed_where_a_tail_shows():
    one = judge([0.001, -0.002, 0.001, 0.002, -0.001, 0.0015, -0.0015, 0.001, -0.001, 0.3], effect=0.05)["mix"]
    assert (one.kind, one.name_kind()) == (
        "equivalent on most seeds",
        "equivalent within 0.05 on a typical seed; on average not shown",
    )
    assert judge([0.001, -0.002, 0.001, 0.002, -0.001], effect=0.05)["mix"].kind == "equivalent"


@pytest.mark.parametrize(
    "draw",
    [
        lambda r, n: np.exp(r.standard_normal(n)) - 1,
        lambda r, n: r.standard_normal(n) + 50 * (r.random(n) < 0.3) - stats.norm.ppf(0.5 / 0.7),
        lambda r, n: r.standard_normal(n) + 50 * (r.random(n) < 0.1) - stats.norm.ppf(0.5 / 0.9),
    ],
    ids=["lognormal", "30 % outliers", "10 % outliers"],
)
@pytest.mark.parametrize("n", [5, 10, 16])
def test_equal_medians_are_told_apart_in_at_most_6_of_100(draw, n):
    random, claimed = np.random.default_rng(5), 0
    for _ in range(1000):
        claimed += judge([float(d) for d in draw(random, n)], base=100.0)["mix"].kind != "undecided"
    assert claimed / 1000 <= 0.065
