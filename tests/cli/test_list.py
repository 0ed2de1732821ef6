"""`ablate list`: whole words at 80 columns, and a way on where there is nothing."""

import json
import re

import pytest

from ablate.cli import main
from ablate.config.registry import Registry

LISTS = ("placements", "norms", "models", "tasks", "data")
PLUGIN = """
from typing import Literal

from ablate.optim.optimizers import optimizers
from ablate.optim.schedules import ScheduleConfig, schedules

optimizers.preset("slow", "adamw", lr=1e-5)


@schedules.register
class Mine(ScheduleConfig):
    \"\"\"Counts batches. And more.\"\"\"

    kind: Literal["mine"] = "mine"
"""


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
        ("optimizers", "adamw"),
    ],
)
def test_at_80_columns_every_word_is_whole(listed, choices, monkeypatch, what, some):
    monkeypatch.setattr("ablate.cli.list.list_choices", lambda what, files: choices[what])
    text = listed(what)
    assert all(len(line) <= 80 for line in text.splitlines())
    for row in choices[what]:
        for word in " ".join(f"{v:,}" if isinstance(v, int) else v for v in row.values()).split():
            part = word.partition("=")[2] if len(word) > 40 else word  # half a line: folded after its equals sign
            assert part in text.split()
    rows = json.loads(listed(what, "--json"))
    assert rows == choices[what]
    assert some in [next(iter(row.values())) for row in rows]


def test_without_a_list_it_says_which_there_are(listed):
    rows = json.loads(listed("--json"))
    lists = {row["list"].removeprefix("ablate list "): row["set by"] for row in rows}
    assert lists.keys() >= {*LISTS, "initialisations", "optimizers", "schedules", "augmentations", "sweeps"}
    assert lists.keys() >= {"samplers", "pruners", "metrics", "measurements"}
    assert len(lists) >= len(Registry.all)
    for what, path in lists.items():
        assert path or what in ("figures", "metrics", "measurements", "sweeps") or what.startswith("library-")
    assert (lists["norms"], lists["samplers"]) == ("norm.layer", "sampler")
    assert lists["attention"] == "model.attention"


def test_every_registry_is_listed_with_where_its_kinds_come_from(listed):
    for row in json.loads(listed("--json")):
        what = row["list"].removeprefix("ablate list ")
        if what in ("sweeps", "models") or what.startswith("library-"):  # the parameters of all models take seconds
            continue
        rows = json.loads(listed(what, "--json"))
        assert rows
        assert {entry["from"] for entry in rows} == {"ablate"}
    for name, registry in Registry.all.items():
        plural = {"norm layer": "norms", "data": "data"}.get(name, f"{name}s")
        if name != "model":
            assert [row[name] for row in json.loads(listed(plural, "--json"))] == registry.names


def test_what_a_plugin_brings_is_listed_with_its_file(listed, registries, tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    rows = {row["schedule"]: row for row in json.loads(listed("schedules", "plugins=mine.py", "--json"))}
    assert rows["mine"] == {"schedule": "mine", "what it is": "Counts batches", "from": "mine.py"}
    rows = {row["optimizer"]: row["from"] for row in json.loads(listed("optimizers", "plugins=mine.py", "--json"))}
    assert (rows["slow"], rows["adamw"]) == ("mine.py", "ablate")


def test_an_unknown_list_is_told(capsys):
    assert main(["list", "schedule"]) == 2
    assert "there is no list 'schedule'. Accepted: " in (told := capsys.readouterr().err)
    assert told.endswith("Did you mean schedules?\n")


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


def test_in_a_pipe_no_cell_is_folded(listed, choices, monkeypatch):
    monkeypatch.setattr("ablate.cli.list.list_choices", lambda what, files: choices[what])
    monkeypatch.delenv("COLUMNS")
    assert len(listed("norms").splitlines()) == 1 + len(choices["norms"])


def test_in_a_pipe_and_in_json_a_setting_can_be_copied(listed, choices, monkeypatch):
    monkeypatch.setattr("ablate.cli.list.list_choices", lambda what, files: choices[what])
    monkeypatch.delenv("COLUMNS")
    for text in (listed("data"), listed("data", "--json")):
        assert "dataset=mlfoundations/dclm-baseline-1.0-parquet " in text
