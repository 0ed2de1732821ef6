"""Words of other projects: each is accepted, or answered with a setting that is accepted when it is typed."""

import re
import shlex

import pytest

from ablate.cli import main
from ablate.config.building import build
from ablate.config.errors import ConfigError
from ablate.config.foreign import FOREIGN, translate
from ablate.config.merging import iterate_paths
from ablate.experiment.tree import Experiment
from ablate.models import models
from ablate.sweeps.spec.sweep import Sweep

ANSWERED = {
    "logger=wandb": "trainer.loggers=WandbLogger",
    "logger=tensorboard": "trainer.loggers=TensorBoardLogger",
    "trainer.gpus=8": "trainer.devices=8",
    "norm=rmsnorm": "norm.layer=rmsnorm",
    "norm=RMSNorm": "norm.layer=rmsnorm",
    "norm=dyt": "norm.layer=dyt",
    "norm=prenorm": "norm=pre",
    "model.d_model=64": "model.hidden=64",
    "model.depth=2": "model.layers=2",
    "n_layer=2": "model.layers=2",
    "block_size=64": "data.seq_len=64",
    "learning_rate=1e-3": "optimizer.lr=0.001",
    "trainer.precision=16-mixed": "trainer.precision=bf16-mixed",
    "optimizer=sgd": "optimizer={kind: torch, name: SGD}",
    "optimizer=lion": "optimizer={kind: timm, name: lion}",
}
ACCEPTED = {
    "schedule=linear": ("schedule", {"kind": "linear"}),
    "data=fineweb": ("data", {"dataset": "HuggingFaceFW/fineweb"}),
    "trainer.precision=bf16": ("trainer", {"precision": "bf16-mixed"}),
    "trainer.precision=32": ("trainer", {"precision": "32-true"}),
    "optimizer=muon": ("optimizer", {"kind": "timm", "name": "muon", "adjust_lr_fn": "match_rms_adamw"}),
    "model=gpt2": ("model", {"kind": "hf", "config": "gpt2"}),
    "model=vit_small_patch16_224": ("model", {"kind": "timm", "name": "vit_small_patch16_224"}),
}


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """told(words) -> the message that a command ends with."""
    monkeypatch.chdir(tmp_path)

    def command(*words):
        try:
            status = main(words)
        except SystemExit as stop:
            status = stop.code
        assert status == 2
        return capsys.readouterr().err

    return command


def suggested(message):
    return re.search(r"Did you mean (.+?)\?", message)[1]


@pytest.mark.parametrize("word", ANSWERED)
def test_a_foreign_word_is_answered_with_a_setting_that_is_accepted(told, word, capsys):
    ours = suggested(told("config", word))
    assert ours == ANSWERED[word]
    assert main(["config", ours]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("word", ACCEPTED)
def test_a_word_with_one_meaning_is_accepted(word):
    path, _, value = word.partition("=")
    part, expected = ACCEPTED[word]
    tree = Experiment.from_mapping({path: int(value) if value.isdigit() else value}).to_tree()[part]
    assert {key: tree[key] for key in expected} == expected


def test_epochs_are_answered_in_updates_and_devices_that_need_no_setting_with_none(told, capsys):
    ours = suggested(message := told("config", "trainer.max_epochs=3"))
    assert (ours, "an epoch has samples / trainer.batch_size of them" in message) == ("trainer.max_steps", True)
    assert main(["config", f"{ours}=3"]) == 0
    capsys.readouterr()
    assert "Leave it out. GPUs are used if there are any" in told("config", "trainer.accelerator=gpu")


def test_several_seeds_are_answered_with_fresh_seeds_of_a_sweep(told, tmp_path):
    verb, file, setting = suggested(told("train", "seed=0,1,2")).removeprefix("ablate ").split()
    assert (verb, file, setting) == ("sweep", "FILE.yaml", "confirm.seeds=3")
    (tmp_path / file).write_text(
        "name: a\narms: {pre: {norm: pre}, post: {norm: post}}\nsearch: {optimizer.lr: [1e-3, 3e-3]}\n"
        "sampler: grid\nbudget: {trials: 2}\n"
    )
    assert Sweep.load(tmp_path / file, {"confirm.seeds": 3}).confirm.seeds == 3
    assert "seed: must be a whole number. Did you mean ablate sweep" in told("sweep", file, "seed=0,1,2", "--dry-run")


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ("train -m norm=pre", "ablate sweep FILE.yaml --dry-run"),
        ("train --multirun norm=pre", "ablate sweep FILE.yaml --dry-run"),
        ("sweep demo --multirun", "ablate sweep FILE.yaml --dry-run"),
        ("train --config-name=mine", "ablate train mine.yaml"),
        ("train --config-name mine", "ablate train mine.yaml"),
        ("sweep --config-name mine", "ablate sweep mine.yaml"),
        ("--config-name=mine", "ablate train mine.yaml"),
        ("tune demo", "ablate sweep FILE.yaml"),
        ("fit --config mine.yaml", "ablate train mine.yaml"),
        ("fit mine.yaml", "ablate train mine.yaml"),
        ("train mine.toml", "ablate config > mine.yaml"),
        ("sweep mine.toml", "ablate config > mine.yaml"),
    ],
)
def test_options_verbs_and_files_of_others_are_answered_with_a_command_that_is_parsed(told, words, ours):
    assert suggested(told(*words.split())) == ours
    # a file that is not there is all that is wrong with a command of its own
    verb, *rest = shlex.split(ours.partition(" >")[0])[1:]
    if rest:
        assert f"there is no file {rest[0]}" in told(verb, *rest)


def test_options_that_are_settings_are_answered_with_the_word(told):
    message = told("train", "--trainer.max_steps=3")
    assert "Write trainer.max_steps=3, without dashes." in message
    assert "Did you mean ablate plan?" in told("train", "--dry-run")


@pytest.mark.parametrize("before", ["", "norm=mix "])
@pytest.mark.parametrize(
    ("word", "ours"), [("model.depth", "model.layers=VALUE"), ("trainer.max_epochs", "trainer.max_steps")]
)
def test_a_foreign_word_without_a_value_is_answered_too(told, before, word, ours):
    assert suggested(told("train", *before.split(), word)) == ours


@pytest.mark.parametrize("word", ["layernorm_scaling", "LayerNormScaling", "lnscaling"])
def test_layer_norm_scaling_by_its_name_in_papers_is_lns(told, word):
    assert suggested(told("train", f"norm={word}")) == "norm=lns"


def test_every_setting_of_the_table_exists():
    paths = {path for kind in ("llama", "vit") for path in iterate_paths(Experiment, {"model": {"kind": kind}})}
    paths |= set(iterate_paths(Experiment, {"data": {"kind": "text"}}))
    for word, ours in FOREIGN.items():
        if ours.path:
            assert ours.path in paths, word


def test_a_setting_that_the_chosen_model_does_not_have_is_not_suggested():
    with pytest.raises(ConfigError, match=r"model.d_ff: unknown key") as error:
        build(Experiment, {"model": "vit", "model.d_ff": 3}, source="x")
    assert "model.mlp=" not in str(error.value)


def test_a_word_of_ours_is_not_in_the_table():
    paths = {path for kind in models for path in iterate_paths(Experiment, {"model": {"kind": kind}})}
    assert {word for word in FOREIGN if word in paths} == {
        "seed",
        "model.width",
    }  # several seeds; the width of a convpool
    assert translate("norm=mix") == ""
