"""Two ranks copy, freeze and adapt as one process does: with ddp, with fsdp, with blocks computed again."""

import pytest
import torch
from norms.cases import PROFILED

from ablate.experiment.tree import Experiment
from ablate.training.procedures import Place
from ablate.training.runs import load_experiment
from ablate.training.train import train
from ablate.training.trained import open_trained

pytest.importorskip("peft")

AGAIN = {"strategy": "fsdp", "activation_checkpointing": True, "gradient_clip_val": 10.0}
WAYS = {"ddp": {"strategy": "ddp"}, "fsdp": {"strategy": "fsdp"}, "recomputed": AGAIN}
PARTS = {"copy": ["embedding", "head", "layers.0"], "freeze": ["embedding", "head", "layers.0.mlp"]}
MATRICES = ("attn.qkv_proj", "attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.chaos)])
def test_two_ranks_copy_freeze_and_adapt_as_one_process_does(every, trained_once, tiny_settings, trained_by_two):
    """Each is stopped and continued, one of the adapted by a single process. All in one launch."""
    tree = {**tiny_settings, "trainer": {**tiny_settings["trainer"], "precision": "32-true"}}
    narrow = trained_once(Experiment.from_mapping(tree, {"model.layers": 1, **PROFILED["llama"]})).run_id
    whole = trained_once(Experiment.from_mapping(tiny_settings)).run_id
    lora = {"warm_start": {"from": whole, "copy": "all"}, "lora": {"rank": 2}, "optimizer.lr": 0.02}
    alone = {
        "frozen": Experiment.from_mapping(tree, {**PROFILED["llama"], "warm_start": {"from": narrow, **PARTS}}),
        "adapted": Experiment.from_mapping(tree, lora),
    }
    daily = {("frozen", "recomputed"), ("adapted", "ddp")}  # each kind and each way once; fsdp is the stopped one's
    ways = [(kind, name, way) for kind in alone for name, way in WAYS.items() if every or (kind, name) in daily]
    ways.append(("adapted", "stopped", WAYS["fsdp"]))
    trees = {
        f"{kind} {name}": Experiment.from_mapping(alone[kind].to_tree(), {"trainer": way}).to_tree()
        for kind, name, way in ways
    }
    results = trained_by_two(trees, stopped=["adapted stopped"])

    before = {"frozen": open_trained(narrow).state, "adapted": open_trained(whole).state}
    stopped = results["adapted stopped"]["run_id"]
    assert set(open_trained(stopped).state) == set(before["adapted"])  # of shards
    results["adapted stopped"] = train(load_experiment(stopped, {}), Place(run_id=stopped)).to_dict()
    single = {kind: train(experiment) for kind, experiment in alone.items()}
    expected = {kind: open_trained(result.run_id).state for kind, result in single.items()}
    for kind, way, _ in ways:
        name = f"{kind} {way}"
        loss, state = results[name]["metrics"]["val/loss"], open_trained(results[name]["run_id"]).state
        assert loss == pytest.approx(single[kind].metrics["val/loss"], rel=1e-5), name
        assert set(state) == set(expected[kind])
        for n in state:
            torch.testing.assert_close(state[n], expected[kind][n], rtol=1e-3, atol=1e-4, msg=f"{name} {n}")
        still = {n for n in state if n in before[kind] and torch.equal(state[n], before[kind][n])}
        if kind == "adapted":  # of the donor only the targets of the adapters differ afterwards
            assert set(state) == set(before[kind])
            assert set(state) - still == {f"layers.{i}.{n}.weight" for i in range(2) for n in MATRICES}
        else:
            frozen = {n for n in state if n.startswith(("embed", "lm_head", "layers.0.mlp"))}
            assert len(frozen) == 6
            assert frozen <= still, name
