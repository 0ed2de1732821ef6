"""Sweeps by name: those of the current folder, then those that come with Ablate."""

from pathlib import Path

import pytest

from ablate.config.errors import ConfigError
from ablate.sweeps.spec.library import find_sweep_file, list_sweep_files


def test_a_name_stands_for_a_file_that_comes_with_ablate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_sweep_file("demo") == list_sweep_files()["demo"]
    assert find_sweep_file("demo").is_absolute()
    Path("sweeps").mkdir()
    Path("sweeps/demo.yaml").touch()
    assert find_sweep_file("demo") == Path("sweeps/demo.yaml")


def test_a_path_stays_what_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("demo").touch()
    for path in ("demo", "demo.yaml", "no/such/demo", Path("mine.yml")):
        assert find_sweep_file(path) == Path(path)


def test_an_unknown_name_says_which_there_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"Accepted: FILE.yaml, components, .*demo.*Did you mean demo\?"):
        find_sweep_file("deno")
