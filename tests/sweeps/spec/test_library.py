"""Sweeps by name: those of the current folder, then those that come with Ablate."""

from pathlib import Path

import pytest

from ablate.cli.list import list_choices
from ablate.config.errors import ConfigError
from ablate.sweeps.spec.library import find_sweep_file, list_sweep_files
from ablate.sweeps.spec.trees import load_trees


def test_a_name_stands_for_a_file_that_comes_with_ablate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_sweep_file("demo") == (list_sweep_files()["demo"], None)
    assert find_sweep_file("demo")[0].is_absolute()
    Path("sweeps").mkdir()
    Path("sweeps/demo.yaml").touch()
    assert find_sweep_file("demo") == (Path("sweeps/demo.yaml"), None)


def test_a_path_stays_what_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("demo").touch()
    for path in ("demo", "demo.yaml", "no/such/demo", Path("mine.yml")):
        assert find_sweep_file(path) == (Path(path), None)


def test_an_unknown_name_says_which_there_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"Accepted: FILE.yaml, components, .*demo.*Did you mean demo\?"):
        find_sweep_file("deno")


def test_every_listed_sweep_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for row in list_choices("sweeps"):
        file, part = find_sweep_file(row["sweep"])
        ((_, tree),) = load_trees(file, None, [part] if part else ()).trees.items()
        assert tree["name"] == row["sweep"]
