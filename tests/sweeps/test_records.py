"""What the trials of an arm leave of its budget."""

import pytest

from ablate.sweeps.records import SweepRecord, count_remaining
from ablate.sweeps.runs import Run, Runs
from ablate.sweeps.spec.sweep import Sweep


def spec(**budget):
    return Sweep.from_tree({"name": "demo", "search": {"optimizer.lr": {"low": 1e-3, "high": 1e-2}}, "budget": budget})


def trial(status="completed", number=0, step=10, seconds=600.0):
    """10 updates of 8 tokens are a whole trial."""
    return Run("all", number, status, {}, 1.0, {}, {}, step, seconds, None, "", items_per_update=8)


@pytest.mark.parametrize(
    ("budget", "trials", "expected"),
    [
        ({"trials": 4}, [], 4),
        ({"trials": 4}, ["completed", "pruned", "diverged", "running"], 0),
        ({"trials": 4}, ["completed", "failed", "interrupted", "waiting"], 3),
        ({"trials": 2}, ["completed"] * 3, 0),
        ({"tokens": 400}, [], 5),
        ({"tokens": 400}, ["completed", "running", "running"], 2),
        ({"tokens": 79}, [], 1),  # one trial may always start
        ({"tokens": 79}, ["running"], 0),
        ({"tokens": 400, "trials": 3}, ["completed"], 2),
    ],
)
def test_left(budget, trials, expected):
    assert count_remaining(spec(**budget), "all", [trial(status, i) for i, status in enumerate(trials)], 80) == expected


def test_a_pruned_trial_costs_what_it_used():
    pruned = [trial("pruned", i, step=4, seconds=60.0) for i in range(5)]
    assert count_remaining(spec(tokens=400), "all", pruned, 80) == (400 - 5 * 32) // 80
    record = SweepRecord("demo", 1, spec(tokens=400), Runs(tuple(pruned)), trial_items={"all": 80})
    assert (record.target(), record.search("all")[0].items) == (8, 32)
