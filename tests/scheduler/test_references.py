"""`sweep:NAME/ARM` names the run of the arm's best trial."""

import pytest

from ablate.config.errors import SweepError
from ablate.scheduler.donors import resolve_run
from ablate.scheduler.storage import open_storage, storage_url
from ablate.scheduler.studies import name_study
from ablate.scheduler.writer import create_study
from ablate.sweeps.spec.sweep import Sweep


@pytest.fixture
def best_is_b(store):
    """Two arms; the second has no completed trial."""
    tree = {"name": "demo", "arms": {"pre": {"norm": "pre"}, "mix": {"norm": "mix"}}, "budget": {"trials": 3}}
    spec, storage = Sweep.from_tree({**tree, "search": {"optimizer.lr": [1e-3, 1e-2]}}), open_storage(storage_url())
    pre, _ = (create_study(storage, name_study("demo", 1, arm), spec) for arm in spec.arms)
    for value, run_id in ((2.0, "a"), (1.5, "b"), (1.8, "c")):
        trial = pre.ask()
        trial.set_user_attr("run_id", run_id)
        pre.tell(trial, value)


@pytest.mark.filterwarnings("ignore:Heartbeat")
@pytest.mark.usefixtures("best_is_b")
@pytest.mark.parametrize("given", ["sweep:demo/pre", "sweep:demo@1/pre"])
def test_the_best_trial(given):
    assert resolve_run(given) == "b"


def test_anything_else_stays(store):
    assert resolve_run("mlruns/runs/a/last.ckpt") == "mlruns/runs/a/last.ckpt"


@pytest.mark.filterwarnings("ignore:Heartbeat")
@pytest.mark.usefixtures("best_is_b")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("sweep:demo/per", "has the arms pre, mix. Did you mean pre?"),
        ("sweep:demo/mix", "no trial of the arm is completed"),
        ("sweep:dmo/pre", "Did you mean demo?"),
    ],
)
def test_what_is_not_there(given, expected):
    with pytest.raises(SweepError, match=expected.replace("?", r"\?")):
        resolve_run(given)
