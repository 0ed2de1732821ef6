"""What is said of arms on fresh seeds: each kind, challenges, looks, and false claims by simulation."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from ablate.verdict.comparison import FreshOutcomes, compare
from ablate.verdict.looks import Looks, nominal_levels
from ablate.verdict.outcomes import Outcome
from ablate.verdict.valley import Rival, Valley

STUCK, DIVERGED = Outcome("stuck", 3.3), Outcome("diverged")
NOISE = (0.00, 0.02, -0.01, 0.01, -0.02, 0.015, -0.015, 0.005, 0.012, -0.004)


def seeds(mean, n=5, noise=NOISE, fail=(), **more):
    """`n` seeds with the mean `mean`, of which those in `fail` diverged; looked at once unless said otherwise."""
    outcomes = {100 + i: DIVERGED if i in fail else Outcome("trained", mean + noise[i]) for i in range(n)}
    return FreshOutcomes(outcomes, **{"looks": Looks((n,), n), **more})


def flat(n=5, **more):
    return seeds(2.0, n, [0.0] * 20, **more)


def kind(arm, base, planned=5, **more):
    return compare({"pre": base, "post": arm}, "pre", planned=planned, **more)["post"].kind


def test_the_interval_is_that_of_the_paired_t_test_at_the_level_of_the_look():
    compared = compare({"pre": flat(), "post": seeds(2.1)}, "pre", planned=5)["post"]
    expected = stats.ttest_1samp(np.array(NOISE[:5]) + 0.1, 0).confidence_interval(1 - 0.04)
    assert compared.versus.interval == pytest.approx(tuple(expected), rel=1e-3)
    assert (compared.versus.level, compared.family) == (pytest.approx(0.04, rel=1e-3), 1)
    two = compare({"pre": flat(), "post": seeds(2.1), "mix": seeds(2.0)}, "pre", planned=5, others=2)["post"]
    assert (two.versus.level, two.family) == (pytest.approx(0.01, rel=1e-3), 4)


@pytest.mark.parametrize(
    ("arm", "base", "expected"),
    [
        (seeds(1.9), flat(), "better"),
        (seeds(2.1), flat(), "worse"),
        (seeds(2.0), flat(), "undecided"),
        (seeds(1.9, fail=[1]), flat(), "mixed"),
        (seeds(1.9, fail=[1]), flat(fail=[0]), "better"),
        (seeds(1.9, fail=[1]), flat(fail=[1]), "better"),
        (seeds(2.1, fail=[1]), flat(), "worse"),
        (seeds(2.1), flat(fail=[1]), "mixed"),
        (seeds(1.9, fail=[0, 1, 2]), flat(), "undecided"),  # two pairs: nothing is claimed
        (seeds(1.9, fail=range(5)), flat(), "fails on all seeds"),
        (seeds(1.9, fail=range(5)), flat(fail=[0, 1]), "fails on all seeds"),
        (flat(), seeds(1.9, fail=range(5)), "baseline fails on all seeds"),
        (flat(fail=range(5)), flat(fail=range(5)), "undecided"),
        (flat(10, fail=range(8)), flat(10), "fails more often"),
        (flat(10), flat(10, fail=range(8)), "fails less often"),
        (seeds(1.9, 2), flat(2), "figures"),
        (seeds(1.9, 5, looks=None), flat(looks=None), "figures"),
        (FreshOutcomes({}), flat(), "figures"),
        (FreshOutcomes({}, found=False), flat(), "could not be trained"),
        (flat(), FreshOutcomes({}, found=False), "baseline could not be trained"),
        (seeds(2.5, noise=[0.0] * 5), flat(), "undecided"),  # equal differences
    ],
)
def test_kinds(arm, base, expected):
    assert kind(arm, base) == expected


def test_more_may_be_better():
    assert kind(seeds(2.1), flat(), maximize=True) == "better"
    assert kind(seeds(1.9), flat(), maximize=True) == "worse"
    assert kind(seeds(2.1, fail=[0]), flat(), maximize=True) == "mixed"


def test_equivalence_needs_an_effect_and_equal_failures():
    assert kind(seeds(2.0), flat(), effect=0.05) == "equivalent"
    assert kind(seeds(2.0), flat(), effect=0.005) == "undecided"
    assert kind(seeds(2.0, fail=[1]), flat(), effect=0.1) == "undecided"
    assert kind(seeds(2.0, fail=[1]), flat(fail=[1]), effect=0.1) == "equivalent"


def test_a_metric_that_counts_has_a_floor():
    equal = seeds(2.0 + 1 / 90, noise=[0.0] * 5)
    compared = compare({"pre": flat(), "post": equal}, "pre", planned=5, resolution=1 / 90)["post"]
    assert compared.versus.interval is not None
    assert kind(flat(), flat(), resolution=1 / 90, effect=0.05) == "equivalent"
    assert kind(flat(), flat(), effect=0.05) == "undecided"


def test_seeds_beyond_the_last_look_wait():
    arm, base = seeds(1.9, 8, looks=Looks((5,), 5)), flat(8, looks=Looks((5,), 5))
    compared = compare({"pre": base, "post": arm}, "pre", planned=8)
    assert (compared["post"].versus.seeds, compared["post"].estimate.n, len(compared["post"].outcomes)) == (5, 5, 8)
    more = compare({"pre": flat(8), "post": seeds(1.9, 8, looks=Looks((5, 8), 5))}, "pre", planned=8)["post"]
    assert more.versus.level == pytest.approx(nominal_levels(Looks((5, 8), 5), 0.05)[1])


def test_seeds_that_failed_are_left_out_and_counted():
    compared = compare({"pre": flat(fail=[4]), "post": seeds(1.9, fail=[1])}, "pre", planned=5)
    v = compared["post"].versus
    assert (v.seeds, v.failed, v.other_failed, v.left_out, v.difference.n) == (5, 1, 1, 2, 3)
    assert v.failure_p == 1.0
    assert compared["pre"].failures.failed == 1
    assert compared["pre"].estimate.n == 4


def challenge(gain, se, arm=None, base=None, may_try=False, freedom=6, effect=None, **more):
    """post against pre, of which the loser may gain `gain` elsewhere."""
    arm, base = arm or seeds(1.9), base or flat()
    valley = Valley((Rival((1.0,), gain, se**2, freedom, False),), may_try)
    arms = {"pre": replace(base, find_valley=lambda: valley), "post": replace(arm, find_valley=lambda: valley)}
    return compare(arms, "pre", planned=5, effect=effect, **more)["post"]


def test_a_loser_has_lost_only_if_no_other_settings_of_it_may_win():
    own = np.array(NOISE[:5]).std(ddof=1) ** 2 / 5
    for gain, se in ((0.05, 0.005), (0.075, 0.002), (0.0, 0.03), (-0.1, 0.05)):
        freedom = (own + se**2) ** 2 / (own**2 / 4 + se**4 / 6)  # Satterthwaite's
        left = 0.1 - gain - stats.t.ppf(1 - 0.04 / 2, freedom) * math.sqrt(own + se**2)
        found = challenge(gain, se)
        assert found.kind == ("better" if left > 0 else "undecided")
        assert found.challenge.held == (left > 0)
        assert (found.challenge.unheld, found.open) == ((), ()) if left > 0 else (("pre",), ())
    assert challenge(0.09, 0.01, may_try=True).open == ("pre",)
    assert challenge(0.09, 0.01, arm=seeds(2.1), may_try=True).open == ("post",)
    assert challenge(0.09, 0.01, maximize=True, may_try=True).open == ("post",)
    assert challenge(-1.0, math.inf).kind == "undecided"  # nothing is known of it
    assert challenge(0.5, 0.01, arm=seeds(2.0)).challenge is None  # nothing is claimed


def test_what_typical_runs_promise_is_held_against_the_typical_difference():
    """Four seeds of pre are far off: its mean says nothing against a gain of its median."""
    arm, base = seeds(1.9, 10), seeds(2.0, 10, noise=[0.01 * i + 3.0 * (i > 5) for i in range(10)])
    low = sorted(b.value - a.value for a, b in zip(arm.outcomes.values(), base.outcomes.values(), strict=True))[1]
    for gain, typical in ((0.9 * low, True), (1.1 * low, True), (1.1 * low, False)):
        valley = Valley((Rival((1.0,), gain, 0.0, 6, False, typical),))
        found = compare(
            {"pre": replace(base, find_valley=lambda valley=valley: valley), "post": arm}, "pre", planned=10
        )
        assert found["post"].challenge.held == (gain < low or not typical)


def test_of_an_equivalence_both_arms_are_challenged():
    near = {"arm": seeds(2.0), "effect": 0.06}
    assert challenge(0.0, 0.001, **near).kind == "equivalent"
    found = challenge(0.05, 0.001, **near, may_try=True)
    assert (found.kind, set(found.open)) == ("undecided", {"pre", "post"})
    valley = Valley((Rival((1.0,), 0.05, 0.0, 6, True),))
    arms = {"pre": flat(), "post": replace(near["arm"], find_valley=lambda: valley)}
    one = compare(arms, "pre", planned=5, effect=0.06)["post"]
    assert one.challenge.unheld == ("post",)


def test_nothing_is_claimed_of_an_arm_at_the_end_of_its_range():
    edge = Valley(edge="at the upper end of its range of lr")
    for arm, base in ((seeds(1.9, find_valley=lambda: edge), flat()), (seeds(1.9), flat(find_valley=lambda: edge))):
        found = compare({"pre": base, "post": arm}, "pre", planned=5)["post"]
        assert (found.kind, found.name_kind()) == ("undecided", "inconclusive, not tuned")
    assert kind(seeds(2.0, find_valley=lambda: edge), flat(), effect=0.05) == "undecided"
    failing = flat(10, fail=range(8), find_valley=lambda: edge)
    assert kind(failing, flat(10)) == "fails more often"  # of the chosen settings


def test_settings_that_were_chosen_anew_say_nothing_before_all_seeds_are_run():
    assert kind(seeds(1.9, 4, looks=Looks((5,), 5), pending=True), flat()) == "figures"
    assert kind(seeds(1.9), flat(4, looks=Looks((5,), 5), pending=True)) == "figures"


def test_one_arm_or_none():
    assert compare({}, "pre", planned=5) == {}
    alone = compare({"pre": flat()}, "pre", planned=5)["pre"]
    assert (alone.kind, alone.versus, alone.failures.n) == ("baseline", None, 5)
    assert compare({"post": flat()}, "pre", planned=5)["post"].kind == "figures"


def test_plain_values():
    compared = compare({"pre": flat(fail=[1]), "post": seeds(1.9)}, "pre", planned=5, effect=0.1)["post"]
    content = json.loads(json.dumps(compared.to_dict()))
    assert content["kind"] == compared.kind
    assert content["outcomes"]["101"] == {"ending": "trained", "value": pytest.approx(1.92)}
    assert content["versus"]["interval"] == pytest.approx(compared.versus.interval)
    assert content["looks"] == {"sizes": [5], "planned": 5}


CLAIMS = {
    "better",
    "worse",
    "mixed",
    "fails more often",
    "fails less often",
    "better on most seeds",
    "worse on most seeds",
}


@pytest.mark.parametrize("failing", [0.0, 0.3])
@pytest.mark.parametrize(("sizes", "planned"), [((5,), 5), (range(3, 13), 12), (range(5, 12), 5)])
def test_equal_arms_are_told_apart_in_at_most_6_of_100_however_often_one_looks(failing, sizes, planned):
    """Stopping at the first claim. Also: the mean interval, where it stops, holds the truth."""
    generator, claimed, covered, counted = np.random.default_rng(7), 0, 0, 0
    for _ in range(600):
        values, failed = generator.normal(2, 1, (2, sizes[-1])), generator.random((2, sizes[-1])) < failing
        for i in range(len(sizes)):
            looks = Looks(tuple(sizes[: i + 1]), planned)
            arms = [
                FreshOutcomes(
                    {s: DIVERGED if failed[k, s] else Outcome("trained", values[k, s]) for s in range(sizes[i])},
                    looks=looks,
                )
                for k in (0, 1)
            ]
            compared = compare({"a": arms[0], "b": arms[1]}, "a", planned=planned)
            if compared["b"].kind in CLAIMS:
                claimed += 1
                break
        interval = compared["b"].estimate.interval if compared["b"].estimate else None
        counted += interval is not None
        covered += interval is not None and interval[0] <= 2 <= interval[1]
    assert claimed / 600 <= 0.06
    assert covered >= 0.93 * counted
