"""`ablate status`: the trials of each arm, and a way on where there is no sweep."""

from __future__ import annotations

import io
import json

import pytest
from optuna.storages import InMemoryStorage
from rich.console import Console

from ablate.cli import main
from ablate.cli.status import render
from ablate.scheduler.progress import Display
from ablate.scheduler.status import Follower
from ablate.sweeps.runs import STATUSES
from ablate.sweeps.spec.sweep import Sweep
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import simulate

VERDICT = "Verdict so far against peri: mix worse (+0.1 ± 0.05)."


def row(arm, failures=(), **counts):
    return {
        "sweep": "vision-small", "verdict": VERDICT, "arm": arm, "target": 8, **dict.fromkeys(STATUSES, 0), **counts,
        "metric": "val/loss", "best": 2.34567, "failures": list(failures),
        "selected": 3, "selection_target": 6, "confirmed": 2, "confirmed_failed": 1, "confirm_target": 5,
        "checkpoint_bytes": 12_345_678, "at_grid": False, "deleted": "",
        "params": {"optimizer.lr": 1e-3, "norm.alpha": 0.5, "optimizer.weight_decay": 0.1},
    }  # fmt: skip


def printed(rows, width=80):
    console = Console(file=io.StringIO(), width=width, soft_wrap=True, highlight=False)
    render(rows, console)
    return console.file.getvalue()


def test_without_a_sweep_there_is_a_sentence(store, capsys):
    assert main(["status"]) == 0
    assert capsys.readouterr().out == "No sweep has been started yet. Start one with: ablate sweep FILE.yaml\n"
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("width", [80, 200])
def test_words_are_whole_and_reasons_stand_below_the_table(width):
    reason = "#3: FileNotFoundError: /a/long/path/[that]/goes/on/and/on/and/on/for/more/than/80/characters.txt"
    counts = {"completed": 4, "pruned": 1, "diverged": 2, "failed": 1}
    text = printed([row("peri", **counts, failures=[reason]), row("mix", completed=8)], width)
    verdict, *table, last = text.splitlines()
    assert verdict == f"vision-small: {VERDICT}"
    assert last == f"vision-small, peri: failed {reason}"
    assert all(len(line) <= width for line in table)
    words = " ".join(table).split()
    for word in ("vision-small", "peri", "7/8", "8/8", "val/loss", "2.346", "weight_decay=0.1"):
        assert word in words
    assert "0 failed" not in " ".join(words)
    assert {"diverged", "stuck"} <= {word.strip(";,") for word in words}


def follow():
    """The lines of a sweep of two arms of which a look finds the last five runs at once."""
    spec = Sweep.from_tree(
        {
            "name": "told",
            "experiment": {"model": "llama", "data": "topics"},
            "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
            "search": {"optimizer.lr": [1e-3, 1e-2]},
            "sampler": "grid",
            "confirm": {"seeds": 3, "candidates": 1},
            "challenge": {"trials": 0},
        }
    )
    storage, valley = InMemoryStorage(), Valley({"pre": 2.1, "post": 2.5}, shared=0.01, own=0.001)
    simulate(spec, valley, storage, 5)
    console = Console(file=io.StringIO(), width=200)
    follower = Follower("told", storage, Display(console, "val/loss", 1))
    return follower, console.file, lambda: simulate(spec, valley, storage)


def test_the_verdict_comes_after_the_runs_that_it_is_over():
    follower, shown, end = follow()
    end()
    follower.close()
    *_, run, verdict = shown.getvalue().splitlines()
    assert run.startswith("[10/10] post seed 3 completed")
    assert verdict.startswith("Verdict against pre: post worse (mean +0.39")
    assert verdict.endswith(", n = 3).")


def test_a_verdict_with_runs_that_were_not_shown_waits_for_the_next_look(monkeypatch):
    """Runs may end between the list of trials and the results."""
    follower, shown, end = follow()
    before = follower._list_trials()
    end()
    trials = follower._list_trials()
    latest = trials[-1:]
    monkeypatch.setattr(follower, "_list_trials", lambda: [*before, *trials[len(before) : -1]])
    follower.look()
    assert "Verdict" not in shown.getvalue()
    monkeypatch.setattr(follower, "_list_trials", lambda: latest)
    follower.look()
    assert shown.getvalue().splitlines()[-1].startswith("Verdict against pre: post worse (mean +0.39")
