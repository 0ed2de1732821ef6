"""The recorded grids, the platform's own runs beside them, and what `benchmarks/rungs.py` finds on them."""

import csv
import importlib.util
import sys
from pathlib import Path

import pytest

from ablate.training.rungs import build_rung
from ablate.training.train import LIGHTNING, train

ROOT = Path(__file__).parents[2]
COUNTS = {"llama": 5 * 9 * 3, "vit": 5 * 9 * 3}


def load(name):
    """A file of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, module)  # dataclasses look there
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recording():
    return load("record_rungs")


@pytest.fixture(scope="module")
def rungs():
    return load("rungs")


def test_the_record_is_whole(recording, rungs):
    with rungs.FILE.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert tuple(rows[0]) == recording.COLUMNS
    keys = {(row["family"], row["arm"], row["lr"], row["seed"]) for row in rows}
    assert {family: sum(key[0] == family for key in keys) for family in COUNTS} == COUNTS
    assert len(rows) == len(keys) * len(recording.LENGTHS)
    assert rungs.FILE.stat().st_size < 300_000


@pytest.mark.parametrize("family", COUNTS)
def test_a_run_of_the_platform_reaches_what_is_recorded(store, recording, rungs, family):
    """The first rung of 16 settings: a plain loop and the platform's Trainer, to the digits of the file."""
    length = recording.LENGTHS[0]
    experiment = recording.build_experiment(family, "post", recording.RATES[4], 0)
    own = train(experiment, procedure=build_rung(LIGHTNING, length)).metrics["val/loss"]
    grid = next(grid for grid in rungs.read_grids() if (grid.family, grid.arm) == (family, "post"))
    assert own == pytest.approx(grid.decayed[length][0, 4], abs=2e-4)


def test_the_trivial_losses_are_those_of_the_data(store, recording, rungs):
    from ablate import tracking

    for family, trivial in rungs.TRIVIAL.items():
        experiment = recording.build_experiment(family, "pre", recording.RATES[0], 0)
        corpus = experiment.data.load(tracking.cache_folder())
        assert experiment.task.measure_trivial_loss(corpus, experiment.model) == pytest.approx(trivial, abs=1e-3)


@pytest.mark.parametrize(("name", "tokens", "searched", "chosen"), [("nine", 0.27, 28, 30), ("sixteen", 0.203, 30, 29)])
def test_a_search_ends_within_the_noise_of_the_grid(rungs, name, tokens, searched, chosen):
    """As docs/explanation/rungs.md has it, of 30 searches: on the searched seed, and after candidates."""
    settings, keep, most = rungs.PLANS[name]
    assert rungs.build_spec(settings, keep).find_share("all") <= most
    found = rungs.run_all(rungs.read_grids(), settings, keep, "decayed")
    assert len(found) == 30
    assert sum(search.share for search in found) / 30 <= tokens
    assert all(search.lost >= 0 for search in found)
    assert sum(search.lost <= 2 * search.noise for search in found) == searched
    assert sum(search.chosen <= 2 * search.noise / 2**0.5 for search in found) == chosen


def test_arms_with_high_best_rates_lose_as_little_as_those_with_low_ones(rungs):
    parts = rungs.split_by_rate(rungs.run_all(rungs.read_grids(), *rungs.PLANS["nine"][:2], "decayed"))
    low, high = ([search.elsewhere for search in part] for part in parts.values())
    assert abs(sum(low) / len(low) - sum(high) / len(high)) < 0.01


def test_where_few_have_learned_by_the_first_rung_nothing_is_lost(rungs):
    """A ViT that is at the loss of guessing there: all go on, for more tokens."""
    found = rungs.run_all(
        rungs.read_grids(rungs.FILE.with_name("rung_grid_slow.csv")), *rungs.PLANS["nine"][:2], "decayed"
    )
    assert [search.lost for search in found] == [0.0] * 5
    assert sorted(round(search.share, 3) for search in found) == [0.265, *[0.418] * 4]
