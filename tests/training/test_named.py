"""Callbacks and loggers by class: found without an import, handed to the Trainer as they are, told where wrong."""

import csv
import re
import sys
from types import SimpleNamespace

import pytest
import torch
import yaml

from ablate import tracking
from ablate.config.errors import AblateError, ConfigError
from ablate.experiment.tree import Experiment
from ablate.training.named import build_loggers
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import load_experiment
from ablate.training.train import train

PLUGIN = """
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger as Table


class Noise(Callback):
    def __init__(self, scale=0.01):
        self.scale, self.calls = scale, 0

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.calls += 1
        for parameter in module.parameters():
            parameter.grad.add_(torch.randn_like(parameter), alpha=self.scale * self.calls)

    def on_validation_end(self, trainer, module):
        for logger in trainer.loggers:
            logger.log_metrics({"mine|calls": self.calls, "mine/val": module.val_metrics["val/loss"], "mine/text": "a"})


class Fails(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        raise OSError("the disk is full")


class Stops(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        trainer.should_stop = trainer.global_step == 2
"""


@pytest.fixture
def build(store, registries, tiny_settings, tmp_path, monkeypatch):
    """build({dotted path: value}) -> an experiment of tiny size, with the plugin mine.py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PLUGIN)
    return lambda settings=None: Experiment.from_mapping(tiny_settings, {"plugins": "mine.py"}, settings or {})


def read_csv(store, folder):
    """Metric -> [(updates, value)] of a log."""
    metrics = {}
    with (store / "logs" / "lightning_logs" / folder / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and name != "step":
                    metrics.setdefault(name, []).append((int(row["step"]), float(value)))
    return metrics


def history(run_id, key):
    return [(m.step, m.value) for m in tracking.client().get_metric_history(run_id, key)]


# ------------------------------------------------------------------ fields


@pytest.mark.parametrize("part", ["callbacks", "loggers"])
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("A", [("A", {})]),
        ("A, B.c", [("A", {}), ("B.c", {})]),
        (["A", {"kind": "B", "scale": 1e-3}], [("A", {}), ("B", {"scale": 1e-3})]),
        ([], []),
    ],
)
def test_a_name_names_and_mappings(part, given, named):
    experiment = Experiment.from_mapping({f"trainer.{part}": given})
    assert [(one.kind, one.arguments) for one in getattr(experiment.trainer, part)] == named
    assert Experiment.from_mapping(experiment.to_tree()) == experiment


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "loggers: must be a list"),
        ({"kind": "A", "project": "x"}, r"loggers: must be a list of names or mappings, such as \[NAME, \{kind: NAME"),
        ([{"project": "x"}], r"loggers\.0\.kind: "),
        ([""], r"loggers\.0\.kind: "),
    ],
)
def test_what_is_no_list_of_classes_is_told_with_its_place(given, message):
    with pytest.raises(ConfigError) as caught:
        Experiment.from_mapping({"trainer.loggers": given})
    (problem,) = caught.value.problems
    assert re.match(rf"trainer\.{message}", str(problem))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"callbacks": "LearningRateMonitr"}, "LearningRateMonitr: .*Did you mean LearningRateMonitor"),
        ({"callbacks": "CSVLogger"}, "CSVLogger: .* is neither a class of lightning.pytorch.callbacks"),
        ({"callbacks": "os.system"}, "os.system: .* is neither a class of"),
        ({"callbacks": "evil.Noise"}, "evil.Noise: .* is neither a class of"),
        ({"callbacks": "mine.torch"}, "mine.torch: .* is neither a class of"),
        ({"callbacks": [{"kind": "mine.Noise", "size": 3}]}, "mine.Noise: .*'size'"),
        ({"callbacks": "ThroughputMonitor"}, "ThroughputMonitor: .*'batch_size_fn'"),
        ({"loggers": [{"kind": "CSVLogger", "nam": "x"}]}, "CSVLogger: .*'nam'"),
        ({"loggers": "mine.Noise"}, "mine.Noise: .* is neither a class of lightning.pytorch.loggers"),
    ],
)
def test_what_is_wrong_is_told_before_training_and_nothing_is_imported(store, build, tmp_path, settings, message):
    (tmp_path / "evil.py").write_text("raise SystemExit('it was run')")
    with pytest.raises(ConfigError, match=rf"trainer\.\w+\.0: {message}".replace(": .* is", ": is")):
        train(build({f"trainer.{part}": value for part, value in settings.items()}))
    assert "evil" not in sys.modules
    assert not (store / "runs").exists()


# ------------------------------------------------------------------ callbacks


def test_lightnings_callbacks_are_logged_and_named_in_the_run(store, trained_once, tiny_settings):
    alone = trained_once(Experiment.from_mapping(tiny_settings))
    names = ["LearningRateMonitor", {"kind": "lightning.pytorch.callbacks.LearningRateMonitor", "log_momentum": True}]
    for name in names:
        watched = train(Experiment.from_mapping(tiny_settings, {"trainer.callbacks": [name]}))
        assert watched.metrics == alone.metrics
        run = tracking.client().get_run(watched.run_id)
        assert "lr-AdamW/pg1" in run.data.metrics
        assert "LearningRateMonitor" in run.data.params["trainer.callbacks"]


def test_a_callback_of_a_plugin_changes_training_and_resumes_exactly(store, build):
    plain, experiment = train(build()), build({"trainer.callbacks": [{"kind": "mine.Noise", "scale": 0.02}]})
    noisy = train(experiment)
    assert noisy.metrics != plain.metrics
    assert history(noisy.run_id, "mine_calls") == [(128 * n, n) for n in (4, 8, 12)]
    assert history(noisy.run_id, "mine/val") == history(noisy.run_id, "val/loss")
    asked = iter(range(100))
    part = train(experiment, hooks=Hooks(asked_to_stop=lambda: next(asked) == 6))
    rest = train(load_experiment(part.run_id, {}), Place(run_id=part.run_id))
    assert rest.metrics == noisy.metrics
    one, other = (
        torch.load(store / "runs" / result.run_id / "last.ckpt", weights_only=True) for result in (noisy, rest)
    )
    assert all(torch.equal(value, other["state_dict"][name]) for name, value in one["state_dict"].items())


def test_a_run_whose_callback_fails_fails_with_its_traceback(build):
    with pytest.raises(OSError, match="the disk is full") as caught:
        train(build({"trainer.callbacks": "mine.Fails"}))
    assert "on_train_batch_end" in [entry.name for entry in caught.traceback]


def test_a_callback_that_ends_a_run_early_fails_it(build):
    with pytest.raises(AblateError, match=r"A callback ended the run after \d+ of 12 updates"):
        train(build({"trainer.callbacks": "mine.Stops"}))


# ------------------------------------------------------------------ loggers


@pytest.mark.parametrize("kind", ["CSVLogger", "mine.Table"])
def test_a_log_has_what_mlflow_has_and_changes_no_number(store, build, kind):
    alone, result = train(build()), train(build({"trainer.loggers": kind}))
    assert result.metrics == alone.metrics
    log, client = read_csv(store, result.run_id), tracking.client()
    for name in set(client.get_run(result.run_id).data.metrics) - {tracking.STEP_METRIC}:
        points = client.get_metric_history(result.run_id, name)
        assert dict(log[name]) == pytest.approx({m.step // 128: m.value for m in points})
    hparams = (store / "logs" / "lightning_logs" / result.run_id / "hparams.yaml").read_text()
    assert yaml.safe_load(hparams)["model.hidden"] == 16


def test_a_resumed_run_begins_another_log_and_may_have_others(store, build):
    asked = iter(range(100))
    part = train(build({"trainer.loggers": "CSVLogger"}), hooks=Hooks(asked_to_stop=lambda: next(asked) == 6))
    rest = train(load_experiment(part.run_id, {}), Place(run_id=part.run_id))
    logs = [read_csv(store, folder)["train/loss"] for folder in (rest.run_id, f"{rest.run_id}-from-7")]
    assert [[step for step, _ in log] for log in logs] == [[1, 2, 4, 6], [8, 10, 12]]
    part = train(build(), hooks=Hooks(asked_to_stop=lambda: True))
    train(load_experiment(part.run_id, {"trainer.loggers": ["CSVLogger"]}), Place(run_id=part.run_id))
    assert read_csv(store, f"{part.run_id}-from-1")


def test_no_password_is_written_to_a_log(store, build):
    address = "s3://user:very-secret-word@host/runs"
    tracking.remember_address("postgresql://user:very-secret-word@host/db")
    (log,) = build_loggers(build({"trainer.loggers": "CSVLogger", "trainer.copy_to": address}), "abc", 0)
    log.save()
    text = (store / "logs" / "lightning_logs" / "abc" / "hparams.yaml").read_text()
    assert "trainer.copy_to" in text
    assert "very-secret-word" not in text


def test_the_next_run_of_a_process_gets_a_run_of_wandb_of_its_own(store, build, monkeypatch):
    ended = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run="one", finish=lambda: ended.append("one")))
    train(build({"trainer.max_steps": 2}))
    assert ended == ["one"]
