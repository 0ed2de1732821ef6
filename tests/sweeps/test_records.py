"""What the trials of an arm leave of its budget."""

import pytest

from ablate.sweeps.records import count_remaining
from ablate.sweeps.runs import Run
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
    ],
)
def test_left(budget, trials, expected):
    assert count_remaining(spec(**budget), "all", [trial(status, i) for i, status in enumerate(trials)]) == expected
