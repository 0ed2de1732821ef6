"""Which arms have fresh seeds that start from one model."""

import pytest
from run_table import by_arm

from ablate.scheduler.donors import describe_shared_start, state_shared_starts
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import Runs
from ablate.sweeps.spec.parts import Arm
from ablate.sweeps.spec.sweep import Sweep

PARTS = {"copy": ["embedding", "head"], "freeze": ["embedding", "head"]}


@pytest.fixture
def record():
    spec = Sweep.from_tree(
        {
            "name": "reuse",
            "experiment": {"model": "llama", "data": "topics"},
            "factor": ["warm_start"],
            "arms": {
                "baseline": {},
                "reused": {"warm_start": {"from": "sweep:/baseline", **PARTS}},
                "small": {"warm_start": {"from": "sweep:first/no_layer", **PARTS}},
                "given": {"warm_start": {"from": "a1b2", **PARTS}},
                "frozen": {"warm_start": {"freeze": ["embedding"]}},
            },
            "search": {"optimizer.lr": [0.001, 0.003]},
            "sampler": "grid",
        }
    )
    return SweepRecord("reuse", 2, spec, Runs())


def test_an_arm_starts_from_one_model_where_its_experiment_names_one(record):
    assert {arm: describe_shared_start(record, arm) for arm in by_arm(record)} == {
        "baseline": None,
        "reused": "stage-1 model (sweep:reuse@2/baseline)",
        "small": "stage-1 model (sweep:first/no_layer)",
        "given": "source run (a1b2)",
        "frozen": None,
    }


def test_the_sentence_names_the_arms_and_their_starts(record):
    text = state_shared_starts(record)
    assert (
        "all seeds of small one stage-1 model (sweep:first/no_layer) and all seeds of given one source run (a1b2)"
    ) in text
    assert "the intervals do not include the variance of these models" in text
    assert (
        state_shared_starts(
            SweepRecord("reuse", 1, record.spec.model_copy(update={"arms": {"baseline": Arm()}}), Runs())
        )
        == ""
    )
