"""Callbacks of `trainer.callbacks`: an observer changes no bit of a run, is caught where it tries to, and costs no run
where it fails; the state of all is in the checkpoints."""

import random

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback

from ablate import tracking
from ablate.config.errors import AblateError, ConfigError
from ablate.experiment.observers import CallbackConfig
from ablate.experiment.tree import Experiment
from ablate.tracking.facts import read_facts
from ablate.training.observing import _find_unloadable
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import load_experiment
from ablate.training.train import train

HOOKS = [name for name in vars(Callback) if name.startswith(("on_", "setup", "teardown"))]
CHECKPOINTS = ("on_save_checkpoint", "on_load_checkpoint")


def weights(store, result):
    return torch.load(store / "runs" / result.run_id / "last.ckpt", weights_only=True)["state_dict"]


def assert_same_run(store, one, other):
    assert one.metrics == other.metrics
    before, after = weights(store, one), weights(store, other)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def history(run_id, key):
    return [(m.step, m.value) for m in tracking.client().get_metric_history(run_id, key)]


@pytest.fixture
def register(registries):
    """register(callback class, changes): the kind `mine` builds such a callback."""
    from typing import ClassVar, Literal

    def add(callback, changes=False):
        class Mine(CallbackConfig):
            """One of the test's own."""

            kind: Literal["mine"] = "mine"
            changes_training: ClassVar[bool] = changes
            scale: float = 1.0
            """Something to set."""

            def build(self):
                return callback()

        registries["callback"].register(Mine)

    return add


class Curious(Callback):
    """Draws random numbers in every hook, reads everything, and keeps a count."""

    def __init__(self):
        self.seen = {}

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def _look(name):
    def hook(self, trainer, module, *arguments, **named):
        self.seen[name] = self.seen.get(name, 0) + 1
        random.random(), np.random.rand(), torch.rand(7), torch.randn(3)
        torch.stack([p.detach().norm() for p in module.parameters()]).sum()
        if name == "on_train_batch_end":
            trainer.logger.log_metrics({"mine|count": self.seen[name], "mine/loss": arguments[0]["loss"].detach()})
        if name == "on_validation_end":
            module.log_dict({})
            trainer.logger.log_metrics({"mine/val": module.val_metrics["val/loss"], "mine/text": "no number"}, step=77)

    return hook


for hook_name in set(HOOKS) - set(CHECKPOINTS):
    setattr(Curious, hook_name, _look(hook_name))


def test_an_observer_of_every_hook_changes_no_bit(store, register, vit_settings):
    settings = {"model.drop_path": 0.3, "trainer.log_every_n_steps": 1}
    alone = train(Experiment.from_mapping(vit_settings, settings))
    register(Curious)
    observed = train(Experiment.from_mapping(vit_settings, settings, {"trainer.callbacks": ["mine"]}))
    assert_same_run(store, alone, observed)
    assert history(observed.run_id, "mine_count") == [(8 * n, n) for n in range(1, 13)]
    assert history(observed.run_id, "mine/loss") == history(observed.run_id, "train/loss")
    assert history(observed.run_id, "mine/val") == history(observed.run_id, "val/loss")
    assert "ablate.left_out" not in read_facts(observed.run_id)


def test_lightnings_observers_change_no_bit_and_are_logged(store, trained_once, tiny_settings):
    pytest.importorskip("psutil")
    alone = trained_once(Experiment.from_mapping(tiny_settings))
    names = ["LearningRateMonitor", "DeviceStatsMonitor", {"kind": "ThroughputMonitor", "window_size": 5}]
    observed = train(Experiment.from_mapping(tiny_settings, {"trainer.callbacks": names}))
    assert_same_run(store, alone, observed)
    metrics = tracking.client().get_run(observed.run_id).data.metrics
    assert {"lr-AdamW/pg1", "train/batches", "DeviceStatsMonitor.on_train_batch_start/cpu_percent"} <= set(metrics)
    assert "ablate.left_out" not in read_facts(observed.run_id)


def test_the_state_of_a_callback_goes_on_with_the_run(store, register, tiny_settings):
    register(Curious)
    experiment = Experiment.from_mapping(tiny_settings, {"trainer.callbacks": "mine", "trainer.log_every_n_steps": 1})
    whole = train(experiment)
    asked = iter(range(100))
    part = train(experiment, hooks=Hooks(asked_to_stop=lambda: next(asked) == 6))
    assert part.status == "interrupted"
    rest = train(load_experiment(part.run_id, {}), Place(run_id=part.run_id))
    assert_same_run(store, whole, rest)
    assert history(rest.run_id, "mine_count") == history(whole.run_id, "mine_count")


def _write_weights(trainer, module, outputs):
    with torch.no_grad():
        next(module.parameters()).add_(1.0)


def _write_data(trainer, module, outputs):
    next(module.parameters()).data = next(module.parameters()).data * 1.5


def _set_rate(trainer, module, outputs):
    trainer.optimizers[0].param_groups[0]["lr"] = 1.0


def _freeze(trainer, module, outputs):
    next(module.parameters()).requires_grad_(False)


def _stop(trainer, module, outputs):
    trainer.should_stop = True


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_write_weights, "the weights"),
        (_write_data, "the weights"),
        (_set_rate, "the optimizer's settings"),
        (lambda trainer, module, outputs: module.model.eval(), "the modes of modules"),
        (_freeze, "what is trained"),
        (_stop, "the end of the run"),
        (lambda trainer, module, outputs: trainer.optimizers[0].state.clear(), "the optimizer's state"),
        (lambda trainer, module, outputs: outputs["loss"].detach().zero_(), "the batch"),
    ],
)
def test_an_observer_that_changes_training_is_caught(store, register, tiny_settings, change, what):
    class Changes(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.global_step == 1:
                change(trainer, module, outputs)

    register(Changes)
    experiment = Experiment.from_mapping(tiny_settings, {"trainer.callbacks": "mine"})
    with pytest.raises(AblateError, match=rf"mine is an observer, and changed .*{what}.* in on_train_batch_end.*True"):
        train(experiment)


def test_an_observer_that_writes_to_weights_in_validation_is_caught_too(store, register, tiny_settings):
    class InValidation(Callback):
        def on_validation_batch_end(self, trainer, module, *arguments):
            next(module.parameters()).mul_(1.1)  # in inference mode, where torch does not count

    register(InValidation)
    with pytest.raises(AblateError, match=r"changed the weights in on_validation_batch_end"):
        train(Experiment.from_mapping(tiny_settings, {"trainer.callbacks": "mine"}))


def test_a_declared_callback_changes_training_and_resumes_exactly(store, trained_once, register, tiny_settings):
    class Noise(Callback):
        def __init__(self):
            self.calls = 0

        def state_dict(self):
            return {"calls": self.calls}

        def load_state_dict(self, state):
            self.calls = state["calls"]

        def on_before_optimizer_step(self, trainer, module, optimizer):
            self.calls += 1
            for parameter in module.parameters():
                parameter.grad.add_(torch.randn_like(parameter), alpha=0.01 * self.calls)

    register(Noise, changes=True)
    plain = trained_once(Experiment.from_mapping(tiny_settings))
    experiment = Experiment.from_mapping(tiny_settings, {"trainer.callbacks": "mine"})
    noisy = train(experiment)
    assert noisy.metrics != plain.metrics
    asked = iter(range(100))
    part = train(experiment, hooks=Hooks(asked_to_stop=lambda: next(asked) == 6))
    assert_same_run(store, noisy, train(load_experiment(part.run_id, {}), Place(run_id=part.run_id)))


@pytest.mark.parametrize("hook", ["on_train_batch_end", "state_dict"])
def test_an_observer_that_fails_costs_no_run(store, trained_once, register, tiny_settings, caplog, hook):
    def fail(self, *arguments, **named):
        raise OSError("the disk is full")

    register(type("Fails", (Callback,), {hook: fail}))
    alone = trained_once(Experiment.from_mapping(tiny_settings))
    observed = train(Experiment.from_mapping(tiny_settings, {"trainer.callbacks": "mine"}))
    assert_same_run(store, alone, observed)
    (warning,) = [record.message for record in caplog.records if "An observer failed" in record.message]
    assert f"the callback mine in {hook}: OSError: the disk is full" in warning
    assert f"in {hook}: OSError" in read_facts(observed.run_id)["ablate.left_out"]


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (dict, "must return a lightning.pytorch.Callback, it is a dict"),
        (type("Saves", (Callback,), {"on_save_checkpoint": print}), "it has on_save_checkpoint; an observer keeps"),
    ],
)
def test_what_cannot_be_built_is_told_before_training(store, register, tiny_settings, callback, message):
    register(callback)
    with pytest.raises(ConfigError, match=rf"trainer\.callbacks\.0: the callback mine cannot be built: .*{message}"):
        train(Experiment.from_mapping(tiny_settings, {"trainer.callbacks": "mine"}))


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({"a": [1, 2.0, "x", None, True, torch.ones(2)], "b": {"c": (1,)}, 3: {}}, ""),
        ({"a": np.float64(1)}, "['a'] is of the type float64"),
        ({"a": [0, {1}]}, "['a'][1] is of the type set"),
        ({"a": {np.int64(1): 2}}, "is of the type int64"),
    ],
)
def test_a_state_that_a_checkpoint_cannot_be_loaded_with_is_found(tmp_path, state, problem):
    assert problem in _find_unloadable(state)
    torch.save(state, tmp_path / "state")
    if not problem:
        assert torch.load(tmp_path / "state", weights_only=True).keys() == state.keys()
    else:
        assert _find_unloadable(state)
