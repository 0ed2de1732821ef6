"""What two ranks draw and sum in an update."""

import hashlib
import json

import pytest
import torch

from ablate import tracking
from ablate.experiment.tree import Experiment
from ablate.training import checkpoints

SCRIPT = """
import json, sys
from pathlib import Path

from torch.utils._python_dispatch import TorchDispatchMode

from ablate.distributed import groups
from ablate.experiment.tree import Experiment
from ablate.training.train import Hooks, Place, train

trees = {name: Experiment.from_mapping(tree) for name, tree in json.loads(sys.argv[1]).items()}
asked = iter(range(1, 100))


class Sums(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "reduce_scatter" in str(func)
        return func(*args, **(kwargs or {}))


def run(experiment, *more):
    with Sums() as sums:
        return train(experiment, *more).run_id, sums.count


def everything():
    results = {name: run(experiment) for name, experiment in trees.items()}
    part = train(trees["drops"], hooks=Hooks(asked_to_stop=lambda: next(asked) == 7))
    results["rest"] = run(trees["drops"], Place(run_id=part.run_id))
    Path(sys.argv[2]).write_text(json.dumps(results))
    return 0


sys.exit(groups.lead(everything))
"""
EACH = {"trainer.log_every_n_steps": 1, "trainer.precision": "32-true"}
FSDP = {**EACH, "trainer.strategy": "fsdp", "trainer.max_steps": 2, "trainer.val_check_interval": 2}


def read_streams(store, run_id):
    """What the checkpoint of a run has of generators: a digest of the CPU's for each part of the batch."""
    content = checkpoints.load(store / "runs" / run_id / "last.ckpt")
    generators = content["callbacks"]["Checkpoint"]["generators"]
    return [hashlib.sha256(states["cpu"].numpy().tobytes()).hexdigest() for states in generators]


def weights(store, run_id):
    return torch.load(store / "runs" / run_id / "last.ckpt", weights_only=True)["state_dict"]


def losses(run_id):
    return [m.value for m in tracking.client().get_metric_history(run_id, "train/loss")]


def test_two_ranks_draw_their_own_masks_and_sum_as_often_as_is_asked(
    store, vit_settings, tiny_settings, run_by_two, tmp_path
):
    accumulated = {**FSDP, "trainer.accumulate": 2}
    settings = {
        "drops": (vit_settings, {**EACH, "model.drop_path": 0.5}),
        "shared": (tiny_settings, {**FSDP, "trainer.tensor_parallel": 2}),
        "batch": (tiny_settings, accumulated),
        "update": (tiny_settings, {**accumulated, "trainer.gradient_sync": "update"}),
        "narrow": (tiny_settings, {**accumulated, "trainer.precision": "bf16-true", "trainer.gradient_sync": "update"}),
    }
    out = tmp_path / "out.json"
    trees = {name: Experiment.from_mapping(*tree).to_tree() for name, tree in settings.items()}
    ended = run_by_two(SCRIPT, json.dumps(trees), out)
    assert [status for status, *_ in ended] == [0, 0], ended
    runs, sums = ({name: ends[i] for name, ends in json.loads(out.read_text()).items()} for i in (0, 1))

    assert len(set(read_streams(store, runs["drops"]))) == 2
    assert len(read_streams(store, runs["shared"])) == 1  # both ranks read the same
    a, b = weights(store, runs["drops"]), weights(store, runs["rest"])
    assert all(torch.equal(a[key], b[key]) for key in a)

    units, updates = 1 + tiny_settings["model"]["layers"], 2
    assert sums["batch"] == units * updates * 2
    assert sums["update"] == sums["narrow"] == units * updates
    assert losses(runs["update"]) == pytest.approx(losses(runs["batch"]), rel=1e-6)
    assert losses(runs["narrow"]) == pytest.approx(losses(runs["batch"]), rel=2e-2)
