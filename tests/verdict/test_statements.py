"""The sentences of a verdict, one for each kind."""

import pytest

from ablate.verdict.comparison import FreshOutcomes, compare
from ablate.verdict.looks import Looks
from ablate.verdict.outcomes import Outcome
from ablate.verdict.statements import state_verdict
from ablate.verdict.valley import Rival, Valley

DIVERGED = Outcome("diverged")
RIVAL = Rival((1.0,), 0.09, 0.0001, 6, False)
NOISE = (0.00, 0.02, -0.01, 0.01, -0.02, 0.015, -0.015, 0.005, 0.012, -0.004)


def seeds(mean, n=5, noise=NOISE, fail=(), **more):
    outcomes = {100 + i: DIVERGED if i in fail else Outcome("trained", mean + noise[i]) for i in range(n)}
    return FreshOutcomes(outcomes, **{"looks": Looks((n,), n), **more})


def flat(n=5, **more):
    return seeds(2.0, n, [0.0] * 20, **more)


def state(arm, base, *, effect=None, **more):
    compared = compare({"pre": base, "post": arm}, "pre", planned=5, effect=effect)
    return state_verdict(compared, "pre", unit="nats", **more)


@pytest.mark.parametrize(
    ("arm", "base", "sentence"),
    [
        (seeds(1.9), flat(), "post is better than pre on a typical seed; mean difference 0.100 ± 0.021 nats (n = 5)."),
        (seeds(2.1), flat(), "post is worse than pre on a typical seed; mean difference 0.100 ± 0.021 nats (n = 5)."),
        (
            seeds(1.9, fail=[1]),
            flat(),
            "post is better than pre on a typical seed when it trains; mean difference 0.105 ± 0.022 nats (over the "
            "4 of 5 seeds on which both trained; 1 left out); it failed on 1 of 5 seeds, pre on 0 of 5, which does not "
            "show that either fails more often.",
        ),
        (
            seeds(2.0),
            flat(),
            "post and pre: inconclusive with 5 seeds; the interval of the difference is -0.021 to +0.021 nats (n = 5).",
        ),
        (
            seeds(1.9, fail=[0, 1, 2]),
            flat(),
            "post and pre: inconclusive with 5 seeds; the mean difference is -0.105 nats (over the 2 of 5 seeds on "
            "which both trained; 3 left out), too few seeds for an interval. post failed on 3 of 5 seeds, pre on "
            "0 of 5, which does not show that either fails more often.",
        ),
        (
            seeds(2.0, fail=range(5)),
            flat(),
            "post failed on all of 5 seeds (55 % or more, one-sided 95 %), pre on 0 of 5, which does not show "
            "that either fails more often.",
        ),
        (flat(), flat(fail=range(5)), "pre, the baseline, failed on all of 5 seeds, post on 0 of 5, which does not"),
        (flat(fail=range(5)), flat(fail=range(5)), "post and pre: neither trained on any of 5 seeds."),
        (
            seeds(2.0, 10, fail=range(8)),
            flat(10),
            "post fails more often than pre: it failed on 8 of 10 seeds, pre on 0 of 10 (exact test, p = 0.0078)",
        ),
        (
            seeds(2.5, noise=[0.0] * 5),
            flat(),
            "the difference is +0.500 nats on every seed (n = 5): equal differences give no interval.",
        ),
        (seeds(1.9, 2), flat(2), "post, difference to pre: -0.090 nats (n = 2). No verdict yet: it requires 3 seeds."),
        (
            seeds(1.9, 4, looks=None),
            flat(4, looks=None),
            "post, difference to pre: -0.095 nats (n = 4). No verdict yet: it requires all 5 seeds.",
        ),
        (FreshOutcomes({}), flat(), "There is no seed yet on which both post and pre have ended."),
        (
            FreshOutcomes({}, found=False),
            flat(),
            "post could not be trained within the budget: no trial of its search completed, so no fresh seed was run.",
        ),
        (
            flat(),
            FreshOutcomes({}, found=False),
            "pre, the baseline, could not be trained within the budget: no fresh seed was run. post failed",
        ),
    ],
)
def test_sentences(arm, base, sentence):
    text = state(arm, base)
    assert sentence in text
    assert text.startswith("On fresh seeds, each at its chosen settings: ")


def test_equivalence_and_small_differences():
    text = state(seeds(2.0), flat(), effect=0.05)
    told = "that matter on a typical seed; the interval of the mean difference is -0.021 to +0.021 (n = 5)."
    assert f"post and pre differ by less than the 0.05 nats {told}" in text
    assert "; that is less than the 0.2 nats that matter." in state(seeds(1.9), flat(), effect=0.2)


@pytest.mark.parametrize(
    ("valley", "why"),
    [
        (Valley((RIVAL,), open=True), "pre may still try other settings"),
        (Valley((RIVAL,)), "pre's tuning was not exhausted: other settings may make up for it"),
        (Valley(edge="at the upper end of its range"), "pre is at the upper end of its range: it was not tuned"),
    ],
)  # fmt: skip
def test_a_difference_at_the_chosen_settings_that_is_not_claimed(valley, why):
    text = state(seeds(1.9), flat(find_valley=lambda: valley))
    assert (
        f"post and pre: inconclusive. At the chosen settings post is better by 0.100 ± 0.021 nats (n = 5), but {why}."
        in text
    )
    close = state(seeds(2.0), flat(find_valley=lambda: valley), effect=0.05)
    assert f"within the difference that matters, but {why}" in close


def test_what_it_rests_on():
    assert "The error of 5 % covers 1 comparison and every look: 1 look at 5 seeds, as planned." in state(
        seeds(1.9), flat()
    )
    text = state(seeds(1.9, looks=Looks((3, 4, 5), 12)), flat())
    assert "covers 1 comparison and every look: 3 looks at 3, 4 and 5 seeds (12 were planned)." in text
    arms = {"pre": flat(), "post": seeds(1.9, 4), "mix": seeds(1.9), "deep": seeds(1.9, looks=Looks((3, 5), 5))}
    text = state_verdict(compare(arms, "pre", planned=5), "pre", unit="nats")
    told = "post on 4 seeds (1 look, as planned); mix on 5 seeds (1 look, as planned); deep on 3 and 5 seeds (2 looks, "
    assert f"covers 3 comparisons and every look: {told}5 were planned). " in text
    arms["deep"] = seeds(1.9)
    text = state_verdict(compare(arms, "pre", planned=5), "pre", unit="nats", planned=False)
    assert "every look: post on 4 seeds (1 look); all others on 5 seeds (1 look). " in text
    arms["few"] = seeds(1.9, 2)  # which nothing is tested of
    text = state_verdict(compare(arms, "pre", planned=5), "pre", unit="nats", planned=False)
    assert "every look: post on 4 seeds (1 look); mix and deep on 5 seeds (1 look). " in text
    text = state(seeds(1.9), flat(), shared_start="stage-1 model")
    assert text.endswith("share one stage-1 model, so the intervals do not include its variance.")
    assert "comparison" not in state(seeds(1.9, 2), flat(2))


def test_one_arm_and_none():
    alone = compare({"pre": seeds(2.0, fail=[1])}, "pre", planned=5)
    assert state_verdict(alone, "pre", unit="nats") == (
        "pre failed on 1 of 5 seeds (1 diverged; 1 to 72 %); when it trains: 1.995 ± 0.022 (4 seeds). There is only "
        "one arm, so there is no comparison."
    )
    empty = compare({"pre": FreshOutcomes({})}, "pre", planned=5)
    assert state_verdict(empty, "pre", unit="nats").startswith("pre has no finished seed.")
    assert state_verdict({}, "pre", unit="nats") == ""
