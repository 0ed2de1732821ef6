"""How seeds end."""

import math

import numpy as np
import pytest

from ablate.sweeps.runs import Run, Runs
from ablate.verdict.outcomes import Outcome, classify, race, state_rule

RUNS = Runs(trivial_loss=3.0)


def trial(status="completed", value=2.0, **metrics):
    metrics = {name.replace("_", "/"): v for name, v in metrics.items()}
    return Run("post", 0, status, {}, value, metrics, {}, 10, 1.0, None, "")


@pytest.mark.parametrize(
    ("loss", "trivial", "ending"),
    [
        (2.0, 3.0, "trained"),
        (2.93, 3.0, "trained"),
        (2.94, 3.0, "stuck"),  # 0.98 * 3
        (3.5, 3.0, "stuck"),
        (3.5, None, "trained"),
        (None, 3.0, "trained"),
        (3.5, 0.0, "trained"),  # one class: its entropy says nothing
        (math.nan, 3.0, "diverged"),
        (math.inf, None, "diverged"),
    ],
)
def test_stuck_is_what_learned_less_than_two_percent(loss, trivial, ending):
    assert classify(loss, trivial) == ending


def test_outcomes_of_trials():
    assert RUNS.find_outcome(trial(val_loss=2.0)) == Outcome("trained", 2.0)
    assert RUNS.find_outcome(trial(value=0.4, val_loss=2.99)) == Outcome("stuck", 0.4)
    assert RUNS.find_outcome(trial(value=0.4)) == Outcome("trained", 0.4)
    assert RUNS.find_outcome(trial("diverged", None)) == Outcome("diverged")
    assert RUNS.find_outcome(trial(value=math.nan)) == Outcome("diverged")
    for status in ("running", "failed", "interrupted", "waiting", "pruned"):
        assert RUNS.find_outcome(trial(status, None)) is None
    assert [Outcome(e).trained for e in ("trained", "stuck", "diverged")] == [True, False, False]


def test_the_rule_is_said():
    assert "3.136 or more, 98 % of the trivial loss of 3.200" in state_rule(3.2)
    assert not {*state_rule(3.2).split()} & {"nats", "token", "class", "class."}  # the task may have neither
    assert "is unknown" in state_rule(None)


def run_race(truths, noise=0.0, least=2, most=4, values=None, effect=None, maximize=False, entropy=0):
    """The seeds of each candidate, and the chosen one, of candidates whose runs are asked for until one is chosen."""
    random, seeds = np.random.default_rng(entropy), [*range(100, 100 + most)]
    drawn = [[truth + noise * random.normal() for _ in range(most + 1)] for truth in truths]
    values = [own[-1] for own in drawn] if values is None else values
    outcomes = [{} for _ in truths]
    while True:
        needed, best = race(values, outcomes, seeds, least, maximize, effect)
        if best is not None:
            return [len(own) for own in outcomes], best
        for own, ended, count in zip(drawn, outcomes, needed, strict=True):
            ended.update({seed: Outcome("trained", own[i]) for i, seed in enumerate(seeds[:count])})


def test_candidates_within_their_noise_get_further_seeds():
    assert run_race([2.0, 2.5, 3.0], 0.01) == ([2, 2, 2], 0)  # far apart
    assert run_race([2.0, 2.5, 3.0], 0.01, maximize=True) == ([2, 2, 2], 2)
    counts, best = run_race([2.0, 2.001, 3.0], 0.01)
    assert (counts[2], max(counts[:2])) == (2, 4)
    assert best in (0, 1)
    assert run_race([2.0, 2.001, 3.0], 0.01, effect=1.0)[0] == [2, 2, 2]  # which does not matter


def test_the_run_of_the_search_is_one_more_seed():
    """Means by hand: 2.1, 2.0, 2.2 and 2.0, 2.2, 2.3 with the search, on the last of two seeds."""
    outcomes = [
        {1: Outcome("trained", 2.1), 2: Outcome("trained", 2.0)},
        {1: Outcome("trained", 2.0), 2: Outcome("trained", 2.2)},
    ]
    assert race([2.2, 2.3], outcomes, [1, 2], 2)[1] == 0
    assert race([2.4, 1.9], outcomes, [1, 2], 2)[1] == 1
    assert race([None, 1.0], outcomes, [1, 2], 2)[1] == 0  # that of a rung is another length


def test_a_candidate_that_fails_more_often_is_not_chosen():
    lost = Outcome("diverged")
    outcomes = [{1: Outcome("trained", 1.0), 2: lost}, {1: Outcome("trained", 3.0), 2: Outcome("trained", 3.0)}]
    assert race([1.0, 3.0], outcomes, [1, 2, 3, 4], 2) == ([2, 2], 1)
    both = [{1: lost, 2: lost}, {1: lost, 2: lost}]
    assert race([2.0, 1.0], both, [1, 2], 2) == ([2, 2], 1)  # then the search decides


def test_more_seeds_choose_better():
    """Of two candidates a noise of a run apart, up to eight seeds find the better one more often than two."""
    found = [sum(run_race([2.0, 2.01], 0.01, 2, most, entropy=e)[1] == 0 for e in range(300)) for most in (2, 8)]
    assert found[0] + 15 < found[1]
