"""A sweep of two arms and two trials each, of a model that trains in a second."""

from rich.console import Console

from ablate.sweeps import run

SILENT = Console(quiet=True)


def spec_tree(settings, **more):
    return {
        "name": "small",
        "experiment": settings,
        "arms": {"pre": {"norm": "pre"}, "mix": {"norm": "mix", "search": {"norm.alpha": [0.5, 1.0]}}},
        "search": {"optimizer.lr": {"low": 1e-3, "high": 1e-2, "log": True}},
        "budget": {"trials": 2},
        **more,
    }


def run_sweep(sweep, workers=2, **more):
    return run.sweep(sweep, workers=workers, console=SILENT, **more)


def table(record):
    """Everything that a report is made of, without times and identities."""
    return {arm: [(t.status, t.params, t.value, t.curve) for t in trials] for arm, trials in record.trials.items()}
