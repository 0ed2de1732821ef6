"""The plan tells an arm that starts with a gradient far from that of the others."""

import pytest

from ablate.scheduler.dry_run import plan
from ablate.scheduler.initial_gradients import describe_outlying_gradients, measure_initial_gradients
from ablate.scheduler.preparation import check_sweep
from ablate.sweeps.spec.sweep import Sweep
from ablate.training import initial_gradient

ARMS = {
    "pre": {"norm": "pre"},
    "post": {"norm": "post"},
    "lns": {"norm": "lns"},
    "large": {"init": {"kind": "normal", "std": 4.0}},
}


@pytest.fixture
def spec(tiny_settings):
    tree = {"name": "starts", "experiment": tiny_settings, "factor": ["norm", "init"], "arms": ARMS}
    return Sweep.from_tree({**tree, "sampler": "grid", "search": {"optimizer.lr": [1e-3]}})


def test_the_plan_names_the_arm(store, spec):
    norms = measure_initial_gradients(spec, check_sweep(spec))
    assert norms["large"] > 10 * max(norms[arm] for arm in ("pre", "post", "lns"))
    warnings = [line.strip() for line in plan(spec, 1, None).splitlines() if "gradient at initialisation" in line]
    assert [line.split(":")[1].strip() for line in warnings] == ["large"]
    assert warnings == list(describe_outlying_gradients(norms))


def test_ten_times_the_median_of_the_others_either_way_is_told():
    def name(norms):
        return [line.split(":")[1].strip() for line in describe_outlying_gradients(norms)]

    assert name({"a": 1.0, "b": 2.0, "c": 3.0}) == []
    assert name({"a": 1.0, "b": 1.0, "c": 10.0}) == ["c"]
    assert name({"a": 1.0, "b": 1.0, "c": 0.1}) == ["c"]
    assert name({"a": 1.0, "b": 1.0, "c": 9.9}) == []
    assert name({"a": 1.0}) == []
    assert name({"a": 1.0, "b": 1.2, "c": float("nan")}) == ["c"]
    assert name({"a": 1.0, "b": 100.0, "c": float("inf")}) == ["a", "b", "c"]
    assert name({"a": float("nan")}) == ["a"]


def test_arms_that_start_from_another_model_are_left_out(store, tiny_settings):
    arms = {"base": {}, "reused": {"warm_start": {"from": "sweep:/base", "copy": ["embedding"]}}}
    tree = {"name": "donors", "experiment": tiny_settings, "arms": arms, "sampler": "grid"}
    spec = Sweep.from_tree({**tree, "search": {"optimizer.lr": [1e-3]}})
    assert list(measure_initial_gradients(spec, check_sweep(spec))) == ["base"]


def test_an_arm_that_is_too_large_and_cannot_be_narrowed_is_left_out_of_the_warnings(store, spec, monkeypatch):
    monkeypatch.setattr(initial_gradient, "MOST_WEIGHTS", 100)
    tree = spec.to_tree()
    grouped = {**ARMS["pre"], "norm.layer": {"kind": "groupnorm", "groups": 8}}
    large = Sweep.from_tree({**tree, "arms": {"pre": ARMS["pre"], "grouped": grouped}, "factor": ["norm"]})
    assert list(measure_initial_gradients(large, check_sweep(large))) == ["pre"]
