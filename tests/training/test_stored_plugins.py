"""A checkpoint, an export and a stored sweep run no code: their plugins are run where the user names them, or where a
run of this store was trained with the same file."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console

from ablate.cli import main
from ablate.config import plugins
from ablate.config.errors import AblateError, ConfigError
from ablate.experiment.tree import Experiment
from ablate.scheduler import run
from ablate.scheduler.storage import list_sweeps, read_sweep, storage_url
from ablate.sweeps.spec.sweep import Sweep
from ablate.training.runs import load_experiment
from ablate.training.train import train
from ablate.training.trained import open_trained

PLUGIN = """
from typing import Literal
from pathlib import Path
from ablate.norms import placements
from ablate.norms.placements import Pre

Path("ran").touch()

@placements.register
class Mine(Pre):
    \"\"\"Pre-LN by another name.\"\"\"
    kind: Literal["mine"] = "mine"
"""
REFUSED = r"it needs the plugin mine\.py, and no run of this store has used .*add: plugins=mine\.py"


def forget():
    """What another process has loaded: nothing."""
    plugins._files.clear()
    for registry in plugins.Registry.all.values():
        for name in [name for name in registry.names if name == "mine"]:
            registry.forget(registry[name].__module__)
    Path("ran").unlink(missing_ok=True)


@pytest.fixture
def own(registries, store, tmp_path, monkeypatch, tiny_settings):
    """A run of this store with a plugin, in a process that has not loaded it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PLUGIN)
    result = train(Experiment.from_mapping(tiny_settings, {"plugins": "mine.py", "norm": "mine"}))
    forget()
    return result.run_id


@pytest.fixture
def foreign(own, store, tmp_path):
    """The checkpoint of that run, that came from elsewhere together with a file of the plugin's name."""
    file = tmp_path / "downloaded.ckpt"
    shutil.copy(store / "runs" / own / "last.ckpt", file)
    (tmp_path / "mine.py").write_text(f"{PLUGIN}# of somebody else\n")
    return file


def test_a_run_of_this_store_is_opened_without_being_asked(own, store, tmp_path):
    shutil.copy(store / "runs" / own / "last.ckpt", tmp_path / "copy.ckpt")
    for name in (own, str(tmp_path / "copy.ckpt")):
        forget()
        assert open_trained(name).experiment.norm.kind == "mine"
        assert Path("ran").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["diagnose", "{file}", "--what", "angular", "--tokens", "100"],
        ["diagnose", "init:{file}", "--what", "angular", "--tokens", "100"],
        *(
            pytest.param(words, marks=pytest.mark.addons)
            for words in (
                ["export", "{file}", "--to", "safetensors", "--output", "exported"],
                ["diagnose", "{file}", "--what", "word_similarity", "--pairs", "pairs.txt"],
                ["evaluate", "{file}", "--tasks", "piqa"],
                ["align", "{file}", "--method", "dpo", "--pairs", "pairs.json"],
                ["train", "warm_start.from={file}", "warm_start.copy=all"],
            )
        ),
    ],
    ids=lambda words: f"{words[0]} {words[1][:5]}",
)
def test_no_verb_runs_what_a_checkpoint_names(foreign, words, capsys, tmp_path):
    (tmp_path / "pairs.txt").write_text("a\tb\t7\nb\tc\t3\na\tc\t2\n")
    assert main([word.format(file=foreign) for word in words]) == 2
    told = capsys.readouterr().err
    assert not Path("ran").exists()
    assert f"1 problem in {foreign}:\n  plugins: it needs the plugin mine.py" in told
    assert "add: plugins=mine.py" in told
    assert "Traceback" not in told


@pytest.mark.addons
def test_a_named_plugin_is_run(foreign, capsys, tmp_path, tiny_settings):
    words = ["export", str(foreign), "--to", "safetensors", "--output", "exported"]
    assert main([*words, "plugins=mine.py"]) == 0, capsys.readouterr().err
    forget()
    assert main(["diagnose", "plugins=mine.py", str(foreign), "--what", "angular", "--tokens", "100"]) == 0
    forget()
    assert main([*words[:-1], "again", "plugin=mine.py"]) == 2
    assert "plugin: unknown key. Accepted: plugins" in capsys.readouterr().err
    start = Experiment.from_mapping(
        tiny_settings,
        {"plugins": "mine.py", "norm": "mine", "warm_start.from": str(foreign), "warm_start.copy": "all"},
    )
    assert train(start).status == "completed"


@pytest.mark.addons
def test_a_sweep_that_starts_from_it_is_refused_before_anything_is_stored(foreign, capsys, tiny_settings):
    tree = {
        "name": "s",
        "experiment": {**tiny_settings, "warm_start.from": str(foreign), "warm_start.copy": "embedding"},
    }
    tree |= {"arms": {"a": {"norm": "pre"}}, "search": {"optimizer.lr": [1e-3]}, "budget": {"trials": 1}}
    Path("s.yaml").write_text(yaml.safe_dump(tree))
    for words in (["sweep", "s.yaml", "--dry-run"], ["sweep", "s.yaml"]):
        assert main(words) == 2
        assert "add: plugins=mine.py" in capsys.readouterr().err
    assert not Path("ran").exists()
    assert list_sweeps(storage_url()) == {}
    assert main(["sweep", "s.yaml", "plugins=mine.py", "--dry-run"]) == 0, capsys.readouterr().err


@pytest.mark.addons
def test_an_exported_folder_runs_nothing(foreign, tmp_path):
    assert main(["export", str(foreign), "--to", "safetensors", "--output", "exported", "plugins=mine.py"]) == 0
    forget()
    with pytest.raises(ConfigError, match=REFUSED):
        open_trained("exported")
    assert not Path("ran").exists()


@pytest.mark.parametrize("disguise", [{"kind": "mine.py"}, ["mine.py"], "mine.py", None])
def test_however_a_checkpoint_names_it(foreign, disguise):
    """`plugins.kind` means `plugins` to what merges configurations."""
    content = torch.load(foreign, weights_only=True)
    tree = {key: value for key, value in content["experiment"].items() if key != "plugins"}
    named = {"plugins.kind": "mine.py"} if disguise is None else {"plugins": disguise}
    torch.save({**content, "experiment": {**tree, **named}}, foreign)
    with pytest.raises(ConfigError, match=REFUSED):
        open_trained(str(foreign))
    assert not Path("ran").exists()


def test_where_there_is_no_store_none_is_made(foreign, tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_STORE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=REFUSED):
        open_trained(str(foreign))
    assert not (tmp_path / "none" / "mlflow.db").exists()


def test_a_missing_file_is_told_as_ever(foreign):
    Path("mine.py").unlink()
    with pytest.raises(ConfigError, match=r"there is no file mine\.py"):
        open_trained(str(foreign))


def test_a_resumed_run_does_not_run_a_changed_file(own, store, tiny_settings):
    from ablate import tracking

    tracking.client().set_tag(own, "ablate.status", "interrupted")
    Path("mine.py").write_text(f"{PLUGIN}# changed\n")
    with pytest.raises(AblateError, match="A plugin has changed since run"):
        load_experiment(own, {})
    assert not Path("ran").exists()
    Path("mine.py").write_text(PLUGIN)
    assert load_experiment(own, {}).norm.kind == "mine"


def test_a_stored_sweep_runs_the_file_that_it_was_made_with_alone(own, tiny_settings):
    tree = {
        "name": "own",
        "plugins": "mine.py",
        "experiment": tiny_settings,
        "arms": {"mine": {"norm": "mine"}},
        "search": {"optimizer.lr": [1e-3]},
        "sampler": "grid",
    }
    run.sweep(Sweep.from_tree(tree), console=Console(quiet=True))
    forget()
    Path("mine.py").write_text(f"{PLUGIN}# of somebody else\n")
    with pytest.raises(ConfigError, match=r"1 problem in the stored sweep own:\n  plugins: it needs the plugin mine"):
        read_sweep("own").spec.base("mine")
    assert main(["status", "own"]) == main(["report", "own"]) == 0
    assert not Path("ran").exists()
    Path("mine.py").write_text(PLUGIN)
    assert read_sweep("own").spec.base("mine").norm.kind == "mine"
    Path("own.yaml").write_text(yaml.safe_dump(tree))
    assert main(["sweep", "own.yaml"]) == 0


def test_an_arm_of_a_stored_sweep_runs_no_plugin_of_another_arm(registries, tmp_path, monkeypatch):
    """Whose number of validation samples it shares."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PLUGIN)
    tree = {"name": "own", "arms": {"pre": {"norm": "pre"}, "mine": {"norm": "mine", "plugins": "mine.py"}}}
    stored = Sweep.model_validate(tree).mark_stored([])
    assert stored.at("pre", {}).norm.kind == "pre"
    assert not Path("ran").exists()
    assert stored.mark_stored(plugins.hash_contents(["mine.py"]).values()).at("mine", {}).norm.kind == "mine"
