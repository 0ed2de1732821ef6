"""`ablate publish`, `ablate verify` and `ablate compare` as they are called: what they print, and their exit status."""

import json

import pytest
from bundles.conftest import build_tree, read_json, run_spec, write_json
from scheduler.small import run_here, spec_tree

from ablate.cli import main
from ablate.scheduler.storage import open_storage, storage_url
from ablate.sweeps.spec.sweep import Sweep


@pytest.fixture
def small(store, tiny_settings, tmp_path, monkeypatch):
    """The store has the sweep `small`, and the current folder is empty."""
    monkeypatch.chdir(tmp_path)
    more = {"confirm": {"seeds": 3, "candidates": 1}, "challenge": {"trials": 0, "extend": 0}}  # ten runs everywhere
    return run_here(Sweep.from_tree(spec_tree(tiny_settings, sampler="random", **more)))


def test_a_sweep_is_published_verified_damaged_and_compared(small, tmp_path, capsys):
    assert main(["publish", "small", "-o", "out"]) == 0
    printed = capsys.readouterr().out
    assert "out: small, 1 sweep, 10 runs." in printed
    assert main(["verify", "out", "--cheapest", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["reproduced"]
    assert [cell["word"] for cell in document["runs"]] == ["bit for bit"]
    assert main(["publish", "out"]) == 0
    assert "out: small, 1 sweep, 10 runs." in capsys.readouterr().out
    assert main(["compare", "out", "small"]) == 0
    printed = capsys.readouterr().out
    assert "No setting differs." in printed
    assert main(["compare", "out", "small", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["pairs"]) == 2
    values = read_json(tmp_path / "out")
    values["sweeps"][0]["runs"][0]["seconds"] = 1.0  # nothing else follows from it
    write_json(tmp_path / "out", values)
    assert main(["verify", "out"]) == 1
    printed = capsys.readouterr().out
    assert "its values are not those that were published" in printed
    assert "small: damaged" in printed
    assert "nothing was trained" in printed


def test_a_run_that_does_not_come_out_again_ends_with_1(small, tmp_path, capsys):
    assert main(["publish", "small", "-o", "out"]) == 0
    values = read_json(tmp_path / "out")
    values["sweeps"][0]["spec"]["experiment"]["data"]["seq_len"] = 31
    write_json(tmp_path / "out", values, seal=True)
    assert main(["verify", "out", "--runs", "2"]) == 1
    assert "small: NOT reproduced (2 runs of 10 trained again: 2 not reproduced)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["verify", "nowhere"], "There is no bundle in nowhere"),
        (["publish", "smoll", "-o", "out"], "Did you mean small?"),
        (["publish", "small"], "--output: Give the folder of the bundle: ablate publish small -o FOLDER."),
        (["verify", "out", "--runs", "-1"], "--runs: must be a whole number of at least 0"),
        (["compare", "small"], "Name two or more to compare"),
    ],
)
def test_a_mistake_is_told_in_a_sentence_and_ends_with_2(words, text, store, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_spec(build_tree("unconfirmed", name="small"), open_storage(storage_url()))
    try:
        status = main(words)
    except SystemExit as end:
        status = end.code
    assert status == 2
    errors = capsys.readouterr().err
    assert text in errors
    assert "Traceback" not in errors
