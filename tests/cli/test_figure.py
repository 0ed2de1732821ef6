"""`ablate diagnose --what figure:NAME` on a sweep that the command line has run."""

import json

import pytest

from ablate.cli import main


def test_a_sweep_without_fresh_seeds_is_drawn_of_one_trial_of_each_arm(swept, tmp_path, capsys):
    assert (
        main(["diagnose", "demo", "--what", "figure:variance", "--tokens", "64", "--output", str(tmp_path), "--json"])
        == 0
    )
    drawing = json.loads(capsys.readouterr().out)
    assert set(drawing["rows"]["variance"]) == {"pre", "post", "mix"}
    assert all(len(one["seeds"]) == 1 for one in drawing["rows"]["variance"].values())
    assert any("demo/mix: the sweep has no fresh seeds" in note for note in drawing["notes"])
    assert {file.suffix for file in tmp_path.glob("variance.*")} == {".png", ".svg", ".csv", ".json"}


def test_an_unknown_sweep(swept, capsys):
    assert main(["diagnose", "dem", "--what", "figure:variance"]) == 2
    assert "Did you mean demo" in capsys.readouterr().err


@pytest.mark.addons
def test_a_sweep_that_was_not_measured_in_training(swept, capsys):
    assert main(["diagnose", "demo", "--what", "figure:lns-4"]) == 2
    assert "trainer.diagnose.what=variance" in " ".join(capsys.readouterr().err.split())


@pytest.mark.addons
def test_they_are_listed(capsys):
    assert main(["list", "figures", "--json"]) == 0
    rows = {row["figure"]: row["also called"] for row in json.loads(capsys.readouterr().out)}
    assert rows["removal"] == "mixln-2, lns-2, lns-3, lns-7"
