"""The kinds of callbacks and loggers: which of Lightning's there are, and what is said of the others."""

import re

import lightning.pytorch.callbacks as lightning_callbacks
import pytest

from ablate.config import extras
from ablate.config.errors import ConfigError
from ablate.config.merging import iterate_leaves
from ablate.experiment.observers import callbacks, loggers
from ablate.experiment.observers.callbacks import REFUSED
from ablate.experiment.tree import Experiment
from ablate.sweeps.preparation import list_differences
from ablate.sweeps.spec.sweep import Sweep
from ablate.training.checkpoints import Earlier
from ablate.training.train import train


def build(part, value):
    return getattr(Experiment.from_mapping({f"trainer.{part}": value}).trainer, part)


def refuse(part, value):
    with pytest.raises(ConfigError) as caught:
        build(part, value)
    (problem,) = caught.value.problems
    return str(problem)


@pytest.mark.parametrize("name", [name for name in lightning_callbacks.__all__ if name != "Callback"])
def test_each_of_lightnings_callbacks_is_taken_or_told_what_to_do_instead(name):
    assert (name in callbacks) != (name in REFUSED)
    if name in callbacks:
        (config,) = build("callbacks", name)
        assert not config.changes_training
        assert type(config.build()) is getattr(lightning_callbacks, name)
    else:
        for value in (name, [{"kind": name, "monitor": "val/loss"}]):
            assert refuse("callbacks", value).startswith(f"trainer.callbacks.0: {name} is not taken: {REFUSED[name]}")


def test_what_is_named_instead_exists():
    fields = set(re.findall(r"(?:trainer|warm_start|optimizer)\.\w+", " ".join(REFUSED.values())))
    assert "trainer.ema_decay" in fields
    tree = Experiment.from_mapping({"warm_start.from": "x", "warm_start.copy": "all"}).to_tree()
    for path in fields:
        part, _, name = path.partition(".")
        assert name in tree[part]


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        ("csv", ["csv"]),
        ("csv,tensorboard", ["csv", "tensorboard"]),
        (["csv", {"kind": "wandb", "project": "mine"}], ["csv", "wandb"]),
        ([], []),
    ],
)
def test_a_name_names_and_mappings(given, kinds):
    built = build("loggers", given)
    assert [log.kind for log in built] == kinds
    again = Experiment.from_mapping(Experiment.from_mapping({"trainer.loggers": given}).to_tree())
    assert again.trainer.loggers == built


@pytest.mark.parametrize(
    ("part", "given", "message"),
    [
        ("callbacks", "LearningRateMonitr", r"callbacks\.0: unknown callback .* Did you mean LearningRateMonitor\?"),
        (
            "callbacks",
            [{"kind": "ThroughputMonitor", "window": 3}],
            r"callbacks\.0\.window: unknown key.*window_size\?",
        ),
        ("callbacks", 3, r"callbacks: must be a list"),
        (
            "loggers",
            {"kind": "wandb", "project": "x"},
            r"loggers: must be a list of names or mappings, such as \[NAME, \{kind: NAME",
        ),
        ("loggers", [{"project": "x"}], r"loggers\.0\.kind: unknown logger null\. Accepted: csv, tensorboard, wandb"),
        ("loggers", ["csv", "csv"], r"loggers: csv stands there twice"),
        ("profiler", "slow", r"profiler: must be 'simple', 'advanced' or 'pytorch'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(part, given, message):
    assert re.match(rf"trainer\.{message}", refuse(part, given))


@pytest.mark.parametrize("kind", [kind for kind in loggers if loggers[kind].library])
def test_a_missing_library_is_told_before_training_with_the_command(store, monkeypatch, tiny_settings, kind):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    experiment = Experiment.from_mapping(
        tiny_settings, {"trainer.loggers": ["csv", kind]}
    )  # which can be read anywhere
    with pytest.raises(ConfigError, match=rf"trainer\.loggers\.1\.kind: .*: pip install '\.\[{kind}\]'"):
        train(experiment)
    assert not (store / "runs").exists()


def test_a_key_of_wandb_is_no_setting():
    assert not [name for name in loggers["wandb"].model_fields if "key" in name or "token" in name]


def test_runs_and_sweeps_of_before_are_the_same_ones():
    tree = Experiment().to_tree()
    for name in ("callbacks", "loggers", "profiler"):
        del tree["trainer"][name]
    assert Experiment.from_mapping(tree) == Experiment()
    Earlier(experiment=dict(iterate_leaves(tree))).check(Experiment())
    sweep = {"name": "old", "arms": {"pre": {"norm": "pre"}}, "search": {"optimizer.lr": [1e-3]}}
    for stored in (sweep, {**sweep, "experiment": tree}):
        spec = Sweep.from_tree(stored)
        assert not {"callbacks", "loggers", "profiler"} & {*spec.to_tree()["experiment"].get("trainer", {})}
        assert list_differences(spec, Sweep.from_tree(spec.to_tree())) == []
