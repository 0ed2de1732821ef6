"""Two arms whose runs are not paired, against scipy's tests."""

import math

import numpy as np
import pytest
from scipy import stats

from ablate.verdict.comparison import FreshOutcomes, compare
from ablate.verdict.looks import Looks
from ablate.verdict.outcomes import Outcome
from ablate.verdict.statements import state_verdict
from ablate.verdict.unpaired import Samples, bound_difference, rank

RANDOM = np.random.default_rng(3)
SAMPLES = [
    (RANDOM.normal(0, 1, m).tolist(), RANDOM.normal(shift, spread, n).tolist())
    for m, n, shift, spread in [(3, 3, 2, 1), (5, 4, 0, 3), (8, 12, 1, 1), (20, 7, 0.5, 2), (70, 60, 0.2, 1)]
]


@pytest.mark.parametrize(("ours", "others"), SAMPLES)
def test_the_interval_is_welchs(ours, others):
    expected = stats.ttest_ind(ours, others, equal_var=False).confidence_interval(0.96)
    assert bound_difference(ours, others, 0.04).interval == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(("ours", "others"), SAMPLES)
def test_ranks_are_those_of_mann_and_whitney(ours, others):
    expected = stats.mannwhitneyu(ours, others, method="exact" if len(ours) < 50 else "asymptotic")
    found = rank(ours, others, 0.11)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.share == pytest.approx(expected.statistic / len(ours) / len(others))
    low, high = found.agreeing or (-math.inf, math.inf)
    for shift, inside in ((low - 1e-9, False), (high + 1e-9, False), ((low + high) / 2, True)):
        if math.isfinite(shift) and len(ours) < 50:
            p = stats.mannwhitneyu([value - shift for value in ours], others, method="exact").pvalue
            assert (p > 0.11) == inside


def test_the_shifts_of_many_runs_are_those_not_rejected():
    """4 million pairs, in less than a second: the ends are found by bisection."""
    ours, others = RANDOM.normal(0.1, 1, 2000), RANDOM.normal(0, 1, 2000)
    low, high = rank(ours, others, 0.11).agreeing
    for shift, inside in ((low - 1e-3, False), (low + 1e-3, True), (high - 1e-3, True), (high + 1e-3, False)):
        assert (stats.mannwhitneyu(ours - shift, others, method="asymptotic").pvalue > 0.11) == inside


def test_ties_are_counted():
    ours, others = [1, 2, 2, 3], [2, 3, 3, 4, 4]

    def difference(a, b, axis):
        return np.abs(np.mean(a, axis) - np.mean(b, axis))

    ranks = stats.rankdata([*ours, *others])
    expected = stats.permutation_test((ranks[:4], ranks[4:]), difference, vectorized=True, alternative="greater")
    assert rank(ours, others, 0.11).p == pytest.approx(expected.pvalue)


def outcomes(values):
    return {i: Outcome("diverged") if value is None else Outcome("trained", value) for i, value in enumerate(values)}


@pytest.mark.parametrize(("failed", "ours", "other_failed", "others"), [(5, 8, 0, 7), (1, 3, 2, 9), (4, 4, 0, 5)])
def test_failures_are_compared_by_fishers_test(failed, ours, other_failed, others):
    samples = Samples(
        outcomes([None] * failed + [1.0] * (ours - failed)),
        outcomes([None] * other_failed + [1.0] * (others - other_failed)),
        Looks((ours,), ours),
    )
    table = [[failed, ours - failed], [other_failed, others - other_failed]]
    assert samples.measure(0.05).failure_p == pytest.approx(stats.fisher_exact(table).pvalue)


def judge(ours, others, sizes=(), effect=None):
    looks = [Looks((*sizes, len(own)), len(own)) for own in (ours, others)]
    arms = {
        "pre": FreshOutcomes(outcomes(others), looks=looks[1]),
        "post": FreshOutcomes(outcomes(ours), looks=looks[0]),
    }
    return compare(arms, "pre", planned=len(ours), effect=effect, pair=Samples)


def test_a_look_spends_its_own_share():
    """0.8 of 5 % for a single one; of three the last what the others left of it."""
    ours, others = SAMPLES[2]
    alone, last = judge(ours, others)["post"].versus, judge(ours, others, (3, 5))["post"].versus
    assert alone.level == pytest.approx(0.04)
    assert last.level == pytest.approx(0.05 * 0.8 * (1 - math.log1p((math.e - 1) * 5 / 8)))
    expected = stats.ttest_ind(ours, others, equal_var=False).confidence_interval(1 - last.level)
    assert last.interval == pytest.approx((expected.low, expected.high))


NOISE = [0.0, 0.02, -0.02, 0.01, -0.01, 0.015]


@pytest.mark.parametrize(
    ("ours", "kind", "told"),
    [
        ([2.2 + n for n in NOISE], "worse", "post is worse than pre over unpaired runs; mean difference 0.200 ± 0.0"),
        ([1.8 + n for n in NOISE[:4]], "better", "(n = 4 and 6)"),
        ([2.0 + n for n in NOISE], "equivalent", "differ by less than the 0.05 nats that matter over unpaired runs"),
        ([2.0, 2.01, 1.99, 2.4, 1.98], "undecided", "post and pre: inconclusive with 5 and 6 runs;"),
        ([2.0, 2.1, None], "undecided", "too few runs for an interval"),
        ([2.0, *[None] * 6], "fails more often", "failed on 6 of 7 runs, pre on 0 of 6"),
        ([None] * 4, "fails on all seeds", "post failed on all of 4 runs"),
        ([2.0, 2.1], "figures", "No verdict yet: it requires 3 runs."),
    ],
)  # fmt: skip
def test_verdicts(ours, kind, told):
    compared = judge(ours, [2.0 + n for n in NOISE], effect=0.05)
    assert compared["post"].kind == kind
    text = state_verdict(compared, "pre", unit="nats")
    assert told in text
    assert ("The runs are not paired" in text) == (kind != "figures")
    assert "seed" not in text.removeprefix("On fresh seeds").partition("The error of")[0]
    assert "seed" not in compared["post"].name_kind().replace("fails on all seeds", "")


def test_the_level_at_which_ranks_agree_is_said():
    """Three runs beside three have no smaller p-value than 0.1."""
    text = state_verdict(judge([1.0, 1.1, 1.2], [2.0, 2.1, 2.2]), "pre", unit="nats")
    assert "post is better than pre" in text
    assert "Mann and Whitney agrees, with a p-value of at most 0.15: it supports the interval" in text
    assert "with a p-value of at most 0.11" in state_verdict(judge(*SAMPLES[2], (3, 5)), "pre", unit="nats")


def test_a_mean_that_few_runs_carry_is_not_claimed():
    """Welch's interval of these excludes 0, while most runs are on the other side."""
    ours, others = [1.0 + 0.001 * n for n in range(20)], [1.05] * 16 + [-9.0, -9.1, -9.2, -9.3, -9.4, -9.5, -9.6, -9.7]
    found = judge(ours, others)["post"]
    assert found.versus.difference.sign == 1
    assert found.versus.side == 0
    assert found.kind == "undecided"
    assert "the ranks of the runs do not agree" in state_verdict(judge(ours, others), "pre", unit="nats")
