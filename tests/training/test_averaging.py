"""The average of the weights: by hand, beside the weights, and through an interruption."""

import pytest
import torch
from norms.cases import PROFILED
from timm.utils import ModelEmaV3

from ablate import tracking
from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment
from ablate.scheduler.own_runs import RUNNER
from ablate.sweeps.spec.sweep import Sweep
from ablate.training.averaging import WeightAverage
from ablate.training.module import TrainingModule
from ablate.training.procedures import Hooks, Place
from ablate.training.train import train

EMA = {"trainer.ema_decay": 0.75}


def checkpoint(store, run_id):
    return torch.load(store / "runs" / run_id / "last.ckpt", weights_only=True)


def average(store, run_id):
    return checkpoint(store, run_id)["callbacks"]["WeightAverage"]["weights"]


def test_three_updates_by_hand(store, family_settings, monkeypatch):
    """With two batches accumulated into each update."""
    weights = []  # before the first update, and after each

    def spied(name):
        whole = getattr(ModelEmaV3, name)

        def spy(self, model):
            weights.append({key: value.clone() for key, value in model.state_dict().items()})
            whole(self, model)

        monkeypatch.setattr(ModelEmaV3, name, spy)

    spied("set")
    spied("update")
    common = {"trainer.max_steps": 3, "trainer.val_check_interval": 1, "trainer.accumulate": 2, "seed": 3}
    experiment = Experiment.from_mapping(family_settings, common, EMA)
    result = train(experiment)
    corpus = experiment.data.load(tracking.cache_folder())
    torch.manual_seed(3)
    task = TrainingModule(experiment, corpus)
    assert len(weights) == 4
    assert all(torch.equal(value, weights[0][name]) for name, value in task.model.state_dict().items())
    expected = weights[0]
    for later in weights[1:]:
        expected = {name: 0.75 * value + 0.25 * later[name] for name, value in expected.items()}
    found = checkpoint(store, result.run_id)["callbacks"]["WeightAverage"]
    assert found["updates"] == 3
    for name, value in expected.items():
        torch.testing.assert_close(found["weights"][name], value, rtol=1e-5, atol=1e-7)
    for prefix, state in (("val/ema/loss", expected), ("val/loss", weights[-1])):
        task.model.load_state_dict(state)
        task.eval()
        with torch.no_grad():
            inputs, targets = corpus.val.__getitems__(range(len(corpus.val)))
            logits = task.model(inputs).flatten(0, -2)
        loss = torch.nn.functional.cross_entropy(logits, targets.flatten()).item()
        assert result.metrics[prefix] == pytest.approx(loss, rel=1e-4)
    plain = {name for name in result.metrics if "ema" not in name}
    assert {name.replace("ema/", "") for name in result.metrics if "ema" in name} == plain


def test_training_does_not_see_it(store, family_settings):
    settings = {**family_settings, **PROFILED[family_settings["model"].get("kind", "llama")], "seed": 1}
    with_it, without = (train(Experiment.from_mapping(settings, more)) for more in (EMA, {}))
    assert {name: with_it.metrics[name] for name in without.metrics} == without.metrics
    assert not any("ema" in name for name in without.metrics)
    a, b = (checkpoint(store, result.run_id)["state_dict"] for result in (with_it, without))
    assert all(torch.equal(a[name], b[name]) for name in b)
    assert a.keys() == b.keys()


@pytest.mark.parametrize("stop", [2, 7])
def test_an_interrupted_run_has_the_same_average_bit_for_bit(store, family_settings, stop):
    experiment = Experiment.from_mapping(family_settings, EMA)
    whole = train(experiment)
    asked = iter(range(1, 100))
    part = train(experiment, hooks=Hooks(asked_to_stop=lambda: next(asked) == stop))
    assert (part.status, part.step) == ("interrupted", stop)
    rest = train(experiment, Place(run_id=part.run_id))
    assert rest.metrics == whole.metrics
    a, b = average(store, whole.run_id), average(store, rest.run_id)
    assert all(torch.equal(a[name], b[name]) for name in b)


def test_a_sweep_can_compare_the_average(store, family_settings):
    def spec(metric, settings):
        return Sweep.from_tree({
            "name": "averages", "experiment": {**family_settings, **settings}, "arms": {"pre": {"norm": "pre"}},
            "search": {"optimizer.lr": [1e-3, 2e-3]}, "objective": {"metric": metric, "direction": "minimize"},
            "budget": {"trials": 1},
        })  # fmt: skip

    RUNNER.prepare(spec("val/ema/loss", EMA))
    with pytest.raises(ConfigError, match="unknown metric"):
        RUNNER.prepare(spec("val/ema/loss", {}))


def test_the_average_is_built_without_drawing_from_the_generator(tiny_settings, tmp_path):
    experiment = Experiment.from_mapping(tiny_settings)
    corpus = experiment.data.load(tmp_path)
    task = TrainingModule(experiment, corpus)
    torch.manual_seed(5)
    WeightAverage(task, corpus, 0.9)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert after == torch.rand(1)
