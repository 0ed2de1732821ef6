"""Downstream tasks during training: there at the right updates, and training is as without them."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

from ablate import tracking
from ablate.addons.evaluation import callback
from ablate.experiment.tree import Experiment
from ablate.training.module import TrainingModule
from ablate.training.procedures import Hooks, Place
from ablate.training.train import train

pytest.importorskip("lm_eval")
from evaluation.conftest import task_data  # noqa: F401


def weights(result):
    file = tracking.open_store() / "runs" / result.run_id / "last.ckpt"
    return torch.load(file, weights_only=False)["state_dict"]


def scores(result):
    """Updates -> score, each logged once."""
    history = tracking.client().get_metric_history(result.run_id, "eval/piqa/acc_norm")
    assert len({point.step for point in history}) == len(history)
    return {point.step // result.items_per_update: point.value for point in history}


def validated(result):
    """The metrics of the last validation without scores."""
    return {name: value for name, value in result.metrics.items() if not name.startswith("eval/")}


@pytest.mark.parametrize("compiled", [False, True])
def test_tasks_are_scored_in_the_arithmetic_of_training(tmp_path, tiny_settings, monkeypatch, compiled):
    """Under the autocast of the run, and by a compiled model where the loss is compiled."""
    run = Experiment.from_mapping(tiny_settings)
    seen, options = [], []
    monkeypatch.setattr(torch, "compile", lambda what, **more: options.append(more) or what)
    monkeypatch.setattr(callback, "load_tasks", lambda *given: {})
    monkeypatch.setattr(callback, "score", lambda model, *given, **more: (model(torch.zeros(1, 8, dtype=int)), {})[1])
    task = TrainingModule(run, run.data.load(tmp_path), compiled)
    task.model.register_forward_hook(lambda *given: seen.append(torch.is_autocast_enabled("cpu")))
    options.clear()
    downstream = callback.Downstream(run, None)
    trainer = SimpleNamespace(precision_plugin=MixedPrecision("bf16-mixed", "cpu"))
    downstream._score(trainer, task)
    downstream._score(trainer, task)
    assert seen == [True, True]
    assert not torch.is_autocast_enabled("cpu")
    assert options == ([{"dynamic": True}] if compiled else [])  # once: questions differ in length


def test_training_is_the_same_and_resumes(trained, tiny_settings, task_data):  # noqa: F811
    asked = {"evaluation": {"tasks": "piqa", "task_data": str(task_data), "every_n_steps": 5, "shots": 1}}
    plain = trained("llama")
    evaluated = train(Experiment.from_mapping(tiny_settings, asked))
    assert validated(evaluated) == plain.metrics
    mine, other = weights(evaluated), weights(plain)
    assert all(torch.equal(mine[name], other[name]) for name in other)
    assert list(scores(evaluated)) == [5, 10, 12]

    steps = []
    hooks = Hooks(progress=lambda step, _: steps.append(step), asked_to_stop=lambda: bool(steps) and steps[-1] >= 6)
    experiment = Experiment.from_mapping(tiny_settings, asked)
    stopped = train(experiment, hooks=hooks)
    assert stopped.status == "interrupted"
    resumed = train(experiment, Place(run_id=stopped.run_id))
    assert resumed.metrics == evaluated.metrics
    assert scores(resumed) == scores(evaluated)


def test_scores_are_metrics_of_a_validation_after_the_same_update(tiny_settings, task_data, store):  # noqa: F811
    """Validations after 4, 8 and 12 updates, scores after 6 and 12."""
    asked = {"evaluation": {"tasks": "piqa", "task_data": str(task_data), "every_n_steps": 6}}
    validations = {}
    result = train(
        Experiment.from_mapping(tiny_settings, asked),
        hooks=Hooks(decide=lambda step, metrics: validations.setdefault(step, dict(metrics)) is not None),
    )
    assert {step: sorted(name for name in m if name.startswith("eval/")) for step, m in validations.items()} == {
        4: [],
        8: [],
        12: ["eval/piqa/acc", "eval/piqa/acc_norm"],
    }
    assert list(scores(result)) == [6, 12]
    assert result.metrics["eval/piqa/acc_norm"] == validations[12]["eval/piqa/acc_norm"] == scores(result)[12]


def test_scores_after_the_last_update_outlive_a_stop_before_its_validation(tiny_settings, task_data, store):  # noqa: F811
    asked = {"evaluation": {"tasks": "piqa", "task_data": str(task_data)}, "trainer": {"max_steps": 13}}
    steps = []
    hooks = Hooks(progress=lambda step, _: steps.append(step), asked_to_stop=lambda: bool(steps) and steps[-1] == 13)
    experiment = Experiment.from_mapping(tiny_settings, asked)  # validated after 4, 8, 12 and 13 updates
    stopped = train(experiment, hooks=hooks)
    assert (stopped.status, stopped.step) == ("interrupted", 13)
    resumed = train(experiment, Place(run_id=stopped.run_id))
    assert resumed.metrics["eval/piqa/acc_norm"] == resumed.metrics["eval/piqa/acc_norm"]
    assert scores(resumed) == {13: resumed.metrics["eval/piqa/acc_norm"]}
