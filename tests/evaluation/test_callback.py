"""Downstream tasks during training: there at the right updates, and training is as without them."""

import pytest
import torch

from ablate import tracking
from ablate.experiment.tree import Experiment
from ablate.training.procedures import Hooks, Place
from ablate.training.train import train

pytest.importorskip("lm_eval")
from evaluation.conftest import task_data  # noqa: F401


def weights(result):
    file = tracking.open_store() / "runs" / result.run_id / "last.ckpt"
    return torch.load(file, weights_only=False)["state_dict"]


def scores(result):
    history = tracking.client().get_metric_history(result.run_id, "eval/piqa/acc_norm")
    return {point.step // result.items_per_update: point.value for point in history}


def test_training_is_the_same_and_resumes(trained, tiny_settings, task_data):  # noqa: F811
    asked = {"evaluation": {"tasks": "piqa", "task_data": str(task_data), "every_n_steps": 5, "shots": 1}}
    plain = trained("llama")
    evaluated = train(Experiment.from_mapping(tiny_settings, asked))
    assert evaluated.metrics == plain.metrics
    mine, other = weights(evaluated), weights(plain)
    assert all(torch.equal(mine[name], other[name]) for name in other)
    assert list(scores(evaluated)) == [5, 10, 12]

    steps = []
    hooks = Hooks(progress=lambda step, _: steps.append(step), asked_to_stop=lambda: bool(steps) and steps[-1] >= 6)
    experiment = Experiment.from_mapping(tiny_settings, asked)
    stopped = train(experiment, hooks=hooks)
    assert stopped.status == "interrupted"
    resumed = train(experiment, Place(run_id=stopped.run_id))
    assert resumed.metrics == plain.metrics
    assert scores(resumed) == scores(evaluated)
