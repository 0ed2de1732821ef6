"""Completion in a shell: what it would be offered."""

from argparse import Namespace
from subprocess import run

import pytest

from ablate.cli import completion, main
from ablate.experiment.tree import Experiment
from ablate.norms import placements


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_code_for_a_shell_is_printed(shell, capsys):
    assert main(["--completion", shell]) == 0
    code = capsys.readouterr().out
    assert "ablate" in code
    if shell == "bash":
        run(["bash", "-n"], input=code, text=True, check=True)


def test_settings_are_those_of_the_kinds_that_are_chosen():
    assert {"norm=", "norm.layer.eps=", "optimizer.lr="} <= {*completion.list_settings("")}
    assert "norm.alpha=" not in completion.list_settings("norm.")
    assert "norm.alpha=" in completion.list_settings("norm.", parsed_args=Namespace(words=["norm=mix"]))


def test_values_are_those_that_are_accepted():
    assert completion.list_settings("norm=") == [f"norm={name}" for name in placements.names]
    for path in ("trainer.precision", "norm.final_norm", "model.sublayers", "trainer.num_workers"):
        values = [word.removeprefix(f"{path}=") for word in completion.list_settings(f"{path}=")]
        assert values
        for value in values:
            Experiment.from_mapping({path: {"true": True, "false": False}.get(value, value)})


def test_lists_are_completed():
    assert {"placements", "samplers", "sweeps"} <= {*completion.list_lists("")}


def test_names_of_sweeps_and_files(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").touch()
    assert {"demo", "my.yaml"} <= {*completion.list_files("")}
    assert completion.list_sweeps("") == []
