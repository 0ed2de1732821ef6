"""How seeds end."""

import math

import pytest

from ablate.sweeps.runs import Run, read_outcome
from ablate.verdict.outcomes import Outcome, classify, state_rule


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
    assert read_outcome(trial(val_loss=2.0), 3.0) == Outcome("trained", 2.0)
    assert read_outcome(trial(value=0.4, val_loss=2.99), 3.0) == Outcome("stuck", 0.4)
    assert read_outcome(trial(value=0.4), 3.0) == Outcome("trained", 0.4)
    assert read_outcome(trial("diverged", None), 3.0) == Outcome("diverged")
    assert read_outcome(trial(value=math.nan), 3.0) == Outcome("diverged")
    for status in ("running", "failed", "interrupted", "waiting", "pruned"):
        assert read_outcome(trial(status, None), 3.0) is None
    assert [Outcome(e).trained for e in ("trained", "stuck", "diverged")] == [True, False, False]


def test_the_rule_is_said():
    assert "3.136 or more, 98 % of the trivial loss of 3.200" in state_rule(3.2)
    assert not {*state_rule(3.2).split()} & {"nats", "token", "class", "class."}  # the task may have neither
    assert "is unknown" in state_rule(None)
