"""`ablate list`: whole words at 80 columns, and a way on where there is nothing."""

import json
import re

import pytest

from ablate.cli import main

LISTS = ("placements", "norms", "models", "tasks", "data", "optimizers")


@pytest.fixture
def listed(store, tmp_path, monkeypatch, capsys):
    """listed(*words) -> what `ablate list` prints at 80 columns, in a folder without sweeps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def command(*words):
        assert main(["list", *words]) == 0
        return capsys.readouterr().out

    return command


@pytest.mark.parametrize(
    ("what", "some"),
    [
        ("placements", "deepnorm"),
        ("norms", "rmsnorm"),
        ("models", "llama-7b"),
        ("data", "image_folder"),
        ("optimizers", "muon"),
    ],
)
def test_at_80_columns_every_word_is_whole(listed, choices, monkeypatch, what, some):
    monkeypatch.setattr("ablate.cli.list.list_choices", lambda what, files: choices[what])
    text = listed(what)
    assert all(len(line) <= 80 for line in text.splitlines())
    for row in choices[what]:
        for word in " ".join(f"{v:,}" if isinstance(v, int) else v for v in row.values()).split():
            assert word in text.split()
    rows = json.loads(listed(what, "--json"))
    assert rows == choices[what]
    assert some in [next(iter(row.values())) for row in rows]


def test_without_a_list_it_says_which_there_are(listed):
    rows = json.loads(listed("--json"))
    assert [row["list"] for row in rows] == [f"ablate list {what}" for what in (*LISTS, "sweeps")]
    assert "norm=KIND" in listed()


def test_a_sweep_file_is_listed_with_its_question(listed, tmp_path):
    (tmp_path / "sweeps").mkdir()
    file = tmp_path / "sweeps" / "a-sweep-with-a-long-name.yaml"
    file.write_text("# Which placement suits a model whose description is long?\nname: a-sweep-with-a-long-name\n")
    text = listed("sweeps")
    assert re.search(r"^a-sweep-with-a-long-name +sweeps/a-sweep-with-a-long-name\.yaml +no +Which", text, re.MULTILINE)
    assert "demo-vision" in text  # which is started by its name


def test_where_there_is_no_file_those_that_come_with_ablate_are_listed(listed):
    rows = json.loads(listed("sweeps", "--json"))
    assert {row["sweep"]: row["file"] for row in rows}["demo"] == "demo"


def test_without_sweeps_the_way_to_one_is_said(listed, monkeypatch):
    monkeypatch.setattr("ablate.sweeps.spec.library.FOLDER", None)
    text = listed("sweeps")
    assert text.startswith("No sweeps: ")
    assert "ablate sweep FILE.yaml" in text
    assert json.loads(listed("sweeps", "--json")) == []
