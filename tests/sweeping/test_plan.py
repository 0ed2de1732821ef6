"""The plan of a sweep, and that looking creates nothing."""

import pytest
from rich.console import Console

from ablate.errors import SweepError
from ablate.sweeping.plan import plan
from ablate.sweeping.run import sweep
from ablate.sweeping.spec import Sweep
from ablate.sweeping.status import statuses


@pytest.fixture
def spec(tiny_settings):
    def build(rates=(1e-3, 1e-2), trials=2):
        tree = {"name": "planned", "experiment": tiny_settings, "sampler": "grid", "search": {"optimizer.lr": rates}}
        return Sweep.from_tree({**tree, "budget": {"trials": trials}})

    return build


def test_plan_counts_what_is_left_and_refuses_a_changed_file_as_the_run_would(store, spec):
    assert "to do: 1 trial," in plan(spec(trials=1), 1, None)
    record = sweep(spec(trials=1), console=Console(quiet=True))
    assert record.validation_items == len(spec().base("all").data.load(store / "cache").val)
    text = plan(spec(), 1, None)
    assert "2 trials (1 done)" in text
    assert "to do: 1 trial," in text
    with pytest.raises(SweepError, match=r"search.optimizer.lr: \[0.001, 0.01\] -> \[0.001, 0.1\]"):
        plan(spec(rates=[1e-3, 1e-1]), 1, None)
    assert "to do: 2 trials" in plan(spec(rates=[1e-3, 1e-1]), 1, None, fresh=True)


def test_looking_at_sweeps_creates_nothing(store):
    assert statuses() == []
    with pytest.raises(SweepError, match="There are none yet"):
        statuses("nosuch")
    assert not (store / "optuna.db").exists()
