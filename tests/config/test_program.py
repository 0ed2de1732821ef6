"""The name by which messages tell a person to start the program again."""

import sys

import pytest

from ablate.config.program import name_program


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program `ablate` in a folder that is not on PATH."""
    file = tmp_path / "bin" / "ablate"
    file.parent.mkdir()
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(file), "sweep"])
    monkeypatch.setenv("PATH", str(tmp_path))
    return file


def test_a_program_that_is_not_on_the_path_is_named_by_its_file(program):
    assert name_program() == str(program)


def test_a_program_on_the_path_is_named_alone(program, monkeypatch):
    monkeypatch.setenv("PATH", str(program.parent))
    assert name_program() == "ablate"


def test_another_program_of_the_name_is_not_meant(program, tmp_path, monkeypatch):
    other = tmp_path / "other" / "ablate"
    other.parent.mkdir()
    other.write_bytes(program.read_bytes())
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    assert name_program() == str(program)


def test_a_notebook_names_the_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/lib/ipykernel_launcher.py"])
    assert name_program() == "ablate"
