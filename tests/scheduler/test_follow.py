"""What a sweep shows while it runs, read from its storage."""

import io

from optuna.storages import InMemoryStorage
from rich.console import Console

from ablate.scheduler.follow import Follower
from ablate.scheduler.progress import Display
from ablate.sweeps.spec.sweep import Sweep
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import simulate


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
    assert verdict.startswith("Verdict against pre: post worse (+0.39")
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
    assert shown.getvalue().splitlines()[-1].startswith("Verdict against pre: post worse (+0.39")
