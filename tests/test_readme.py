"""What README says works as written."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from ablate.cli import build_parser
from ablate.config.yaml import split_words
from ablate.experiment.tree import Experiment
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.sweep import Sweep

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (ablate \w+ .*)$", TEXT, flags=re.MULTILINE)


def block(language):
    return re.search(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL).group(1)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command, registries, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (tmp_path / "my_norm.py").write_text(re.search(r"```python\n(.*?)```", contributing, flags=re.DOTALL).group(1))
    words = shlex.split(command.partition(" > ")[0], comments=True)
    given = build_parser().parse_args(words[1:])
    if given.verb in ("train", "config") and not getattr(given, "resume", None):
        _, overrides = split_words(given.words)
        Experiment.from_mapping(overrides)
    if given.verb in ("sweep", "ladder") and given.file:
        overrides = split_words(given.words)[1]
        load_sweeps(
            ROOT / given.file, overrides, size=getattr(given, "size", None), factor=getattr(given, "scale", 1.0)
        )


def test_there_are_commands():
    assert len(COMMANDS) > 15


def test_the_sweep_file_is_one():
    sweep = Sweep.from_tree(yaml.safe_load(block("yaml")))
    assert list(sweep.all_arms) == ["pre", "mix"]


def test_the_python_example_runs(store, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(block("python"), {"__name__": "example"})
    told = capsys.readouterr().out.strip().splitlines()
    first, last = told[0], told[-1]
    assert first.startswith("completed ")
    assert "'optimizer.lr': 0.0" in last
    assert "learning_rate.png" in last


@pytest.mark.parametrize("file", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_files_in_sweeps_are_valid_and_begin_with_their_question(file):
    names = [sweep.name for sweep in load_sweeps(file)]
    assert names == [file.stem] or all(name.startswith(f"{file.stem}-") for name in names)
    assert file.read_text(encoding="utf-8").splitlines()[0].startswith("# ")
    assert f" sweeps/{file.name}" in file.read_text(encoding="utf-8")


def test_links_and_pictures_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert target.startswith("https://") or (ROOT / target).exists(), target
