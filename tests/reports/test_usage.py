"""Compute and memory of arms that start from other models, against hand-computed cases and the paper's own figures."""

from dataclasses import replace

import pytest
from run_table import by_arm, join, put

from ablate.estimate.flops import count_by_formula
from ablate.estimate.inputs import build_skeleton
from ablate.experiment.tree import Experiment
from ablate.reports.usage import compute_costs, tabulate_costs
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH, Run
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.speed import compare_speeds

REUSE = {"warm_start": {"from": "sweep:first/one", "copy": ["embedding", "head"], "freeze": ["embedding", "head"]}}
SPEC = {
    "name": "reuse",
    "experiment": {"trainer": {"max_steps": 100}},
    "arms": {"baseline": {}, "reuse": REUSE, "worse": {"warm_start": {**REUSE["warm_start"], "freeze": ["head"]}}},
    "search": {"optimizer.lr": [1e-3, 1e-2]},
    "confirm": {"seeds": 3},
}


def training(arm, seed, curve, costs):
    step = max(curve)
    return Run(arm, seed, "completed", {}, curve[step], {}, curve, step, 1.0, None, "", 10, seed=seed,
                       costs=costs)  # fmt: skip


@pytest.fixture
def record():
    """A baseline of 1000 operations that ends at 2; an arm that is there after 50 or 60 of 100 updates of 5, having
    taken 200 before; one that gets there on one seed of three."""
    whole = {"flops_per_update": 10, "flops_before": 0.0, "state_bytes": 1600}
    baseline = [training("baseline", seed, {50: 3.0, 100: 2.0}, whole) for seed in (1, 2, 3)]
    costs = {"flops_per_update": 5, "flops_before": 200.0, "state_bytes": 1200}
    reuse = [training("reuse", s, {40: 3.0, at: 2.0, 100: 1.5}, costs) for s, at in {1: 50, 2: 60, 3: 60}.items()]
    worse = [training("worse", s, {100: end}, costs) for s, end in {1: 1.9, 2: 2.1, 3: 2.2}.items()]
    confirmed = {"baseline": baseline, "reuse": reuse, "worse": worse}
    spec = Sweep.from_tree(SPEC)
    trials = {arm: trials[:1] for arm, trials in confirmed.items()}
    return SweepRecord("reuse", 1, spec, join({"search": trials, FRESH: confirmed}))


def test_the_cost_is_of_a_training_to_its_end(record):
    found = compute_costs(record)
    assert (found["baseline"].flops, found["baseline"].flops_before) == (1000, 0)
    assert (found["reuse"].flops_before, found["reuse"].flops, found["reuse"].state_bytes) == (200, 500, 1200)
    failed = replace(record.fresh("reuse")[0], status="diverged", value=None, step=3)
    changed = put(record, confirmed={**by_arm(record, FRESH), "reuse": [failed, *record.fresh("reuse")[1:]]})
    assert compute_costs(changed)["reuse"].flops == 500


def test_flops_to_the_baselines_result_include_those_of_the_source(record):
    speed = compare_speeds(record)["reuse"]
    assert speed.updates.at == pytest.approx(80)  # from 3 at 40 to 1.5 at 100, the validations that all seeds have
    assert speed.shares["flops"].value == pytest.approx((200 + 5 * speed.updates.at) / 1000)
    assert speed.shares["tokens"].value == pytest.approx(speed.updates.at / 100)


def test_a_sweep_without_warm_starts_says_nothing(record):
    arms = {"baseline": {}, "reuse": {"norm": "post"}, "worse": {"norm": "mix"}}
    assert compute_costs(replace(record, spec=Sweep.from_tree({**SPEC, "arms": arms}))) == {}


def test_the_report_shows_it(record):
    (section,) = tabulate_costs(compute_costs(record), record.spec.compared_with)
    rows = {row[0]: dict(zip(section.table.header, row, strict=True)) for row in section.table.rows}
    assert (rows["reuse"]["FLOPs before"], rows["reuse"]["FLOPs"], rows["reuse"]["saved"]) == ("200", "500", "25.0 %")
    assert any("All seeds of an arm start from the same model" in text for text in section.sentences)


# ---------------------------------------------------------------------------------------------------- the formulas


def cost(settings, classes=11, shape=(12,)):
    experiment = Experiment.from_mapping(settings)
    return count_by_formula(build_skeleton(experiment, classes, shape))


TINY = {"model": {"kind": "llama", "hidden": 4, "layers": 1, "heads": 2, "mlp": 6}}
LAYER = 4 * 4 * 4 + 3 * 4 * 6 + 2 * 4  # attention, MLP, two norms
HEAD, NORM = 11 * 4, 4


def test_operations_and_bytes_of_hand_computed_cases():
    free = cost(TINY)
    assert free.flops == 6 * (LAYER + HEAD + NORM)
    assert free.bytes == 16 * (LAYER + NORM + 2 * HEAD)
    none = cost({**TINY, "model.layers": 0})
    assert none.flops == 6 * (NORM + HEAD)
    tied = cost({**TINY, "model.tie_embeddings": True})  # one matrix, used as the head
    assert tied.flops == 6 * (LAYER + HEAD + NORM)
    assert tied.bytes == 16 * (LAYER + NORM + HEAD)


@pytest.mark.addons
def test_operations_and_bytes_of_frozen_parts():
    frozen = cost({**TINY, "warm_start": {"freeze": ["embedding", "head"]}})
    assert frozen.flops == 6 * (LAYER + NORM) + 2 * HEAD
    assert frozen.bytes == 16 * (LAYER + NORM) + 2 * 2 * HEAD
    assert (frozen.trained, frozen.frozen) == (LAYER + NORM, 2 * HEAD)


def test_operations_of_an_image():
    """Each of the 16 patches and the class token goes through the layer, the class token alone through the head."""
    model = {"kind": "vit", "hidden": 4, "layers": 1, "heads": 2, "patch_size": 2, "mlp_ratio": 2.0}
    found = cost({"model": model}, classes=11, shape=(1, 8, 8))
    layer = (4 * 12 + 12) + (4 * 4 + 4) + (4 * 8 + 8) + (8 * 4 + 4) + 2 * 8
    patch, head, norm = 2 * 2 * 4 + 4, 11 * 4 + 11, 8
    assert found.flops == 6 * (17 * (layer + norm) + 16 * patch + head)
    assert found.bytes == 16 * (layer + norm + patch + head + 4 + 17 * 4)


@pytest.mark.addons
def test_the_figures_of_the_paper_at_570m():
    """16.1 % less memory, and 11.52 % less compute at 16.0 k of 20 k steps after a first stage of one layer."""
    size = {"model": "llama-570m-e", "model.vocab_size": 50_257}
    outside = {"freeze": ["embedding", "head"]}
    full, first = cost(size), cost({**size, "model.layers": 1})
    second = cost({**size, "warm_start": outside})
    assert 1 - second.bytes / full.bytes == pytest.approx(0.161, abs=0.0005)
    assert 1 - (20 * first.flops + 16 * second.flops) / (20 * full.flops) == pytest.approx(0.1152, abs=0.0001)


@pytest.mark.addons
def test_the_figures_of_the_paper_at_1b():
    """28.33 % less at 13.0 k of 20 k steps; what width the MLP had is not known, and ours comes to 27.6 %."""
    size = {"model": "llama-1b-e", "model.vocab_size": 50_257}
    full, first = cost(size), cost({**size, "model.layers": 1})
    second = cost({**size, "warm_start": {"freeze": ["embedding", "head"]}})
    assert 1 - (20 * first.flops + 13 * second.flops) / (20 * full.flops) == pytest.approx(0.2833, abs=0.01)
