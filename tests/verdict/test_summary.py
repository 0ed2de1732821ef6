"""What was found in one sentence: what is told together, and what of failures."""

import pytest

from ablate.verdict.comparison import FreshOutcomes, compare
from ablate.verdict.looks import Looks
from ablate.verdict.outcomes import Outcome
from ablate.verdict.summary import summarise

NOISE = (0.00, 0.02, -0.01, 0.01, -0.02, 0.015, -0.015, 0.005, 0.012, -0.004)


def seeds(mean, n=10, fail=0):
    outcomes = {
        i: Outcome("stuck", 3.3) if i < fail else Outcome("trained", mean + NOISE[i] * (mean != 2)) for i in range(n)
    }
    return FreshOutcomes(outcomes, looks=Looks((n,), n))


def say(arms, places=None, **more):
    first = next(iter(arms))
    against = {arm: next(a for a in arms if a[0] == "p" and a[-1] == arm[-1]) for arm in arms} if places else first
    compared = compare(arms, against, planned=10, **more)
    names = {arm: arm.partition(" ")[0] for arm in arms}
    return summarise(compared, places or {"": list(arms)}, names=names, baseline="pre", unit="nats")


def test_arms_of_one_verdict_are_told_together_and_failures_last():
    told = say({"pre": seeds(2), "post": seeds(1.9), "mix": seeds(1.8), "lns": seeds(2.0001, fail=2)}, effect=0.001)
    assert told == (
        "On 10 fresh seeds, with an error of at most 5 % for all 3 comparisons together: post (mean 0.099 ± 0.013 "
        "nats) and mix (mean 0.199 ± 0.013 nats) are better than pre on a typical seed, lns is inconclusive (failed "
        "seeds of 10: lns 2)."
    )


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        (seeds(2.1), "post (mean 0.101 ± 0.010 nats) is worse than pre on a typical seed."),
        (
            seeds(1.9, fail=1),
            "(mean 0.099 ± 0.012 nats, n = 9) is better than pre on a typical seed when it trains (failed "
            "seeds of 10: post 1).",
        ),
        (seeds(2.1, fail=10), "post fails more often than pre (failed seeds of 10: post 10)."),
        (seeds(2.0, fail=10), "post fails more often than pre"),
        (seeds(2.0), "post is inconclusive."),
    ],
)
def test_each_verdict_has_its_words(arm, words):
    assert words in say({"pre": seeds(2), "post": arm})


def test_too_few_seeds_for_the_exact_test_are_told_as_a_fact():
    told = say({"pre": seeds(2, 5), "post": seeds(2.1, 5, fail=5)})
    assert "one comparison: post trained on no seed (failed seeds of 5: post 5)." in told
    assert "pre fails" not in told


def test_places_follow_each_other():
    arms = {"pre a": seeds(2), "post a": seeds(1.9), "pre b": seeds(2), "post b": seeds(2.1)}
    told = say(arms, {"at a": ["pre a", "post a"], "at b": ["pre b", "post b"]})
    assert ": at a post (mean 0.099 ± " in told
    assert " is better than pre on a typical seed; at b post (mean 0.101 ± " in told
    assert told.endswith("is worse than pre on a typical seed.")


def test_nothing_is_said_without_a_verdict():
    assert say({"pre": seeds(2)}) == ""
    assert say({"pre": seeds(2, 2), "post": seeds(1.9, 2)}) == ""
