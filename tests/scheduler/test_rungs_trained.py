"""A sweep by rungs that trains, against the trainings that its plan names, and against one that was stopped."""

import pytest
from run_table import by_arm
from scheduler.small import run_here, stop_when, table

from ablate.sweeps.spec.sweep import Sweep
from ablate.training.train import train

RATES = [1e-3, 3e-3, 1e-2, 3e-2]
ONE_OF_FOUR = {"rungs": 2, "keep": 0.25, "first": 0.5}
WSD = {"kind": "wsd", "warmup_steps": 2, "decay_fraction": 0.4}


@pytest.fixture
def build(tiny_settings):
    """build(schedule, part of the sweep ...): a sweep of four settings, one of which goes on from update 6 of 12."""

    def build(schedule, **parts):
        search = {"method": "rungs", **ONE_OF_FOUR, "optimizer.lr": RATES}
        experiment = {**tiny_settings, "schedule": schedule}
        return Sweep.from_tree({"name": "climbed", "experiment": experiment, "search": search, **parts})

    return build


@pytest.mark.parametrize("schedule", [WSD, "cosine"])
def test_who_goes_on_and_what_it_ends_with(store, build, schedule, monkeypatch):
    spec = build(schedule)
    # of these few updates none has learned, and then all would go on
    monkeypatch.setattr(type(spec.base("all").task), "measure_trivial_loss", lambda *given: None)
    (trials,) = by_arm(run_here(spec)).values()
    short = [train(spec.at("all", {"optimizer.lr": rate}).shorten(6)).metrics["val/loss"] for rate in RATES]
    assert [trial.rungs[0].value for trial in trials] == short
    best = short.index(min(short))
    assert [trial.status for trial in trials] == ["completed" if n == best else "pruned" for n in range(4)]
    assert trials[best].value == train(spec.at("all", {"optimizer.lr": RATES[best]})).metrics["val/loss"]
    planned = sum(rung.trained for rung in spec.plan_rungs("all"))
    assert sum(trial.items for trial in trials) == planned * spec.base("all").items_per_update


@pytest.mark.parametrize("looks", [pytest.param(8, marks=pytest.mark.chaos), 26])
def test_a_sweep_that_is_stopped_and_continued_finds_the_same(store, build, monkeypatch, looks):
    """While all train to the first rung, and later."""
    whole = table(run_here(build(WSD, name="whole")))
    asked = iter(range(1000))
    with monkeypatch.context() as patch:
        stop_when(patch, lambda task: next(asked) >= looks)
        with pytest.raises(KeyboardInterrupt):
            run_here(build(WSD))
    assert {"interrupted", "waiting"} & {trial.status for trial in read_trials()}
    assert table(run_here(build(WSD))) == whole


def read_trials():
    """The trials of the sweep."""
    from ablate.scheduler.storage import read_sweep, storage_url

    return read_sweep("climbed", storage_url(None)).search("all")
