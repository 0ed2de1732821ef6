"""`ablate report`: several sweeps, rows for pandas, JSON that writes nothing, and a terminal that has no ±."""

import csv
import io
import json
import os
import subprocess
import sys

import pytest

from ablate import tracking
from ablate.cli import main
from ablate.scheduler.storage import open_storage, read_sweep, storage_url
from ablate.sweeps.spec.sweep import Sweep
from benchmarks.simulation.sweeps import simulate


@pytest.fixture
def told(swept, capsys):
    """told(*words) -> what `ablate report` prints on the sweep `demo`."""

    def command(*words):
        status = main(["report", *words])
        captured = capsys.readouterr()
        assert status == 0, captured.err
        return captured.out

    return command


def test_rows_are_the_runs(told):
    rows = list(csv.DictReader(io.StringIO(told("demo", "--csv"))))
    record = read_sweep("demo")
    frame = record.frame()
    assert len(rows) == len(frame) == len(record.runs)
    assert list(frame.columns) == list(rows[0])
    assert {(row["phase"], row["arm"]) for row in rows} >= {("search", "pre"), ("search", "mix")}
    best = record.best("mix")
    (row,) = [row for row in rows if row["phase"] == "search" and row["run_id"] == best.run_id]
    assert float(row["value"]) == float(row["val/loss"]) == best.value
    assert (float(row["norm.alpha"]), float(row["optimizer.lr"])) == (
        best.params["norm.alpha"],
        best.params["optimizer.lr"],
    )
    mean = frame[frame.phase == "search"].groupby("arm").value.min()
    assert mean["pre"] == record.best("pre").value
    fresh = [row for row in rows if row["phase"] == "confirmation"]
    assert [row["seed"] for row in fresh if row["arm"] == "pre"] == [str(run.seed) for run in record.fresh("pre")]


def test_json_draws_and_writes_nothing(store):
    """Nor does it import what draws, or MLflow, in a process of its own."""
    spec = Sweep.from_tree({
        "name": "demo", "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
        "search": {"optimizer.lr": [1e-3, 3e-3]}, "sampler": "grid", "confirm": {"seeds": 3},
    })  # fmt: skip
    simulate(spec, lambda arm, params, seed: 3 + len(arm) + seed / 7, open_storage(storage_url()))
    code = (
        "import sys; from ablate.cli import main; status = main(['report', 'demo', '--json']); "
        "print(*[n for n in ('matplotlib', 'mlflow', 'jinja2') if n in sys.modules], file=sys.stderr); "
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert list(document)[:2] == ["verdict", "summary"]
    assert document["figures"] == []
    assert done.stderr.strip() == ""
    assert not [path for path in store.rglob("*") if "report" in path.name or path.suffix == ".png"]


def test_json_with_a_folder_writes_the_files(told, tmp_path):
    document = json.loads(told("demo", "--json", "-o", str(tmp_path / "out")))
    assert (tmp_path / "out" / "report.html").exists()
    assert document["figures"]


def test_several_sweeps_have_a_line_each(told, swept, tmp_path, monkeypatch):
    from ablate.scheduler.storage import open_storage
    from ablate.sweeps.spec.sweep import Sweep
    from benchmarks.simulation.losses import Valley
    from benchmarks.simulation.sweeps import simulate

    tree = {
        "name": "other",
        "experiment": {"model": "llama", "data": "topics"},
        "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
        "search": {"optimizer.lr": [1e-3, 1e-2]},
        "sampler": "grid",
        "confirm": {"seeds": 3, "candidates": 1},
    }
    address = f"sqlite:///{tmp_path / 'two.db'}"
    storage = open_storage(address)
    for name, floor in (("other", 2.5), ("third", 2.1)):
        simulate(Sweep.from_tree({**tree, "name": name}), Valley({"pre": 2.1, "post": floor}), storage)
    monkeypatch.setattr(tracking, "ensure_experiment", lambda title: pytest.fail("logged"))
    monkeypatch.setattr("ablate.reports.report_data.draw_figures", lambda record: [])
    monkeypatch.setattr("ablate.reports.report.store_report", lambda title, report, *more: report)
    printed = told("other", "third", "other", "--storage", address, "-o", str(tmp_path / "pages"))
    assert "Verdict against pre: post worse (mean +0." in printed
    documents = json.loads(told("other", "third", "--storage", address, "--json"))
    assert [document["sweep"] for document in documents] == ["other", "third"]
    rows = list(csv.DictReader(io.StringIO(told("other", "third", "--storage", address, "--csv"))))
    assert {row["sweep"] for row in rows} == {"other", "third"}
    assert {row["ending"] for row in rows} == {"trained"}


def test_rows_go_without_files(swept, capsys):
    assert main(["report", "demo", "--csv", "--json"]) == 2
    assert "--csv: cannot be combined with --json or --output" in capsys.readouterr().err


@pytest.mark.parametrize(("call", "status"), [("", 1), ("replace_unprintable()", 0)])
def test_a_terminal_that_cannot_show_it_gets_ascii(call, status):
    code = f"from ablate.cli.output import replace_unprintable; {call}; print('1 ± 2 → 3 … 日')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code.replace("; ;", ";")], capture_output=True, env=environment)
    assert done.returncode == status
    assert done.stdout.decode("ascii").strip() == ("1 +- 2 -> 3 ... ?" if status == 0 else "")
