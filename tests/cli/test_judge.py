"""`ablate judge` on the command line."""

import json
import subprocess
import sys

import pytest

from ablate.cli import main

pytestmark = pytest.mark.addons
HEAVY = ["torch", "lightning", "optuna", "mlflow", "pandas", "matplotlib"]


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = {"pre": [2.0, 2.01, 2.02, 2.0, 2.01], "post": [2.1, 2.11, 2.12, 2.1, 2.15]}
    lines = [f"{arm},{seed},{value}" for arm, own in values.items() for seed, value in enumerate(own)]
    (tmp_path / "runs.csv").write_text("arm,seed,val_loss\n" + "\n".join(lines) + "\n")
    return tmp_path


def test_a_table_is_judged_and_its_looks_are_counted(table, capsys):
    assert main(["judge", "runs.csv", "--baseline", "pre"]) == 0
    out = capsys.readouterr().out
    assert "post is worse than pre" in " ".join(out.split())
    assert (table / "runs.csv.looks.json").exists()
    assert main(["judge", "runs.csv", "--baseline", "pre", "--markdown"]) == 0
    assert "| post | worse | 5 |" in capsys.readouterr().out
    assert main(["judge", "runs.csv", "--baseline", "pre", "--json", "-o", "verdict"]) == 0
    assert json.loads(capsys.readouterr().out)["arms"]["post"]["kind"] == "worse"
    names = {"verdict.html", "verdict.md", "verdict.json", "verdict.png", "verdict.svg"}
    assert {path.name for path in (table / "verdict").iterdir()} == names
    assert "<svg" in (table / "verdict" / "verdict.html").read_text()


def test_without_a_file_for_looks(table, capsys):
    assert main(["judge", "runs.csv", "--baseline", "pre", "--looks-file", "none"]) == 0
    assert not (table / "runs.csv.looks.json").exists()
    assert "Earlier looks at these results are not counted" in " ".join(capsys.readouterr().out.split())


def test_a_plan_is_no_look(table, capsys):
    assert main(["judge", "runs.csv", "--baseline", "pre", "--plan", "--effect", "0.02"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "seeds of each arm that train find a difference of 0.02 val_loss" in told
    assert main(["judge", "runs.csv", "--baseline", "pre", "--plan", "--effect", "0.02", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["comparisons"][0]["arm"] == "post"
    assert not (table / "runs.csv.looks.json").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["runs.csv"], "baseline: which arm it is was not said"),
        (["runs.csv", "--baseline", "pre", "--baseline", "post"], "--baseline: given 2 times (pre, post)"),
        (["run.csv"], "Did you mean runs.csv?"),
        (["runs.csv", "--baseline", "pre", "--plan"], "--plan: needs the difference"),
        (["runs.csv", "--baseline", "pre", "--write"], "--write: goes with mlflow:NAME, given runs.csv"),
        (["runs.csv", "--json", "--markdown"], "--markdown: cannot be combined with --json"),
    ],
)
def test_mistakes_are_a_sentence(table, capsys, words, told):
    assert main(["judge", *words]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not (table / "runs.csv.looks.json").exists()


def test_nothing_heavy_is_imported(table):
    code = f"""
import sys
from ablate.cli import main
assert main(["judge", "runs.csv", "--baseline", "pre"]) == 0
import ablate
table = {{"arm": ["a", "b"] * 3, "seed": [1, 1, 2, 2, 3, 3], "loss": [1.0, 2.0, 1.1, 2.3, 1.2, 2.1]}}
ablate.judge(table, baseline="a")
print("heavy:", *({{*{HEAVY}}} & {{*sys.modules}}))
"""
    out = subprocess.run([sys.executable, "-c", code], cwd=table, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert out.splitlines()[-1].strip() == "heavy:"
