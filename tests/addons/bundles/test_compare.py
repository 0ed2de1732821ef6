"""Runs, sweeps and bundles side by side."""

import math

import numpy as np
import pytest
from bundles.conftest import build_tree, lose
from scheduler.small import run_here, spec_tree
from scipy.stats import t

from ablate.addons.bundles.compare import compare
from ablate.config.errors import SweepError
from ablate.scheduler.storage import open_storage, storage_url
from ablate.sweeps.spec.sweep import Sweep
from benchmarks.simulation.sweeps import simulate


def test_a_sweep_and_a_bundle_of_it_do_not_differ(run_sweep, bundle):
    run_sweep("searched")
    comparison = compare(["searched", str(bundle)])
    assert comparison.settings == {}
    assert {pair.difference.mean for pair in comparison.pairs} == {0.0}
    assert {pair.arm: pair.seeds for pair in comparison.pairs} == {"pre": 4, "post": 4, "mix": 4}


def test_differences_are_those_of_pairs_of_seeds(run_sweep):
    first = run_sweep("grid")
    larger = {"model": {"kind": "llama", "layers": 7}, "data": "topics", "trainer": {"max_steps": 777}}
    second = run_sweep("grid", name="larger", experiment=larger)  # another model: the store gives it the same seeds
    comparison = compare(["grid", "larger"])
    changed = {"model.layers", "trainer.max_steps", "trainer.val_samples"}  # the last follows from its length
    assert set(comparison.settings) == changed
    assert comparison.settings["trainer.max_steps"]["larger"] == "777"
    arm = "pre lr=0.003"
    values = [{run.seed: run.value for run in record.fresh(arm)} for record in (first, second)]
    differences = [values[1][seed] - values[0][seed] for seed in values[0]]
    (pair,) = [pair for pair in comparison.pairs if pair.arm == arm]
    assert pair.difference.mean == pytest.approx(np.mean(differences), abs=1e-12)
    failing = next(pair for pair in comparison.pairs if pair.arm == "post lr=0.009")
    assert failing.difference is None
    assert (failing.failed, failing.reference_failed) == (4, 4)


def test_sweeps_of_the_same_model_in_one_store_have_means_and_no_pairs(run_sweep):
    run_sweep("grid")
    run_sweep("grid", name="again")
    comparison = compare(["grid", "again"])
    assert (comparison.pairs, comparison.settings) == ([], {})
    assert any("have seeds of their own" in note for note in comparison.notes)
    _, failed, seeds = comparison.summarise(comparison.sides[1], "pre lr=0.003")
    assert (failed, seeds) == (0, 4)


def test_all_intervals_share_the_error(run_sweep):
    """There are six pairs of arms, so each interval is at 5/6 %."""
    run_sweep("grid")
    tree = build_tree("grid", name="noisy", experiment={"model": {"kind": "llama", "layers": 7}, "data": "topics"})
    spec = Sweep.from_tree(tree)
    lost = lose(spec)

    def lose_more(arm, params, seed):
        return lost(arm, params, seed) + 0.01 * math.sin(7 * seed)

    simulate(spec, lose_more, open_storage(storage_url()), trivial_loss=3.3)
    comparison = compare(["grid", "noisy"])
    (pair,) = [pair for pair in comparison.pairs if pair.arm == "pre lr=0.003"]
    limit = t.ppf(1 - 0.05 / len(comparison.pairs) / 2, 3)
    assert pair.difference.half_width == pytest.approx(limit * pair.difference.sd / 2)
    assert len(comparison.pairs) == 6


def test_runs_are_compared_whatever_their_arms_are_called(store, tiny_settings):
    record = run_here(Sweep.from_tree(spec_tree(tiny_settings, sampler="random", budget={"trials": 1})))
    ids = [record.search(arm)[0].run_id for arm in ("pre", "mix")]
    comparison = compare(ids)
    assert comparison.arms == ["pre / mix"]
    assert "norm.kind" in comparison.settings
    (pair,) = comparison.pairs
    values = [record.search(arm)[0].metrics["val/loss"] for arm in ("pre", "mix")]
    assert pair.difference.mean == pytest.approx(values[1] - values[0], abs=1e-6)
    assert pair.difference.interval is None


def test_what_is_none_of_these_is_told(run_sweep):
    run_sweep("grid")
    with pytest.raises(SweepError, match=r"'grod' is no folder with a bundle, .*Did you mean grid"):
        compare(["grid", "grod"])
    with pytest.raises(SweepError, match="There is no run 0123456789abcdef"):
        compare(["grid", "0123456789abcdef" * 2])
    with pytest.raises(SweepError, match="Name two or more"):
        compare(["grid"])
