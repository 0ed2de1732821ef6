"""Compute and memory of arms that start from other models, against hand-computed cases and the paper's own figures."""

from dataclasses import replace

import pytest
from run_table import by_arm, join, put

from ablate.estimate.flops import count_by_formula
from ablate.estimate.inputs import build_skeleton
from ablate.experiment.tree import Experiment
from ablate.reports.tokens_to_baseline import compare_tokens
from ablate.reports.usage import compute_savings, tabulate_savings
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH, Run
from ablate.sweeps.spec.sweep import Sweep

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


def test_the_saving_is_of_both_stages_paired_by_seed(record):
    found = compute_savings(record)
    assert (found["baseline"].flops, found["baseline"].saved) == (1000, None)
    reuse = found["reuse"]
    assert (reuse.flops_before, reuse.flops, reuse.state_bytes) == (200, 500, 1200)
    saved = [1 - (200 + 5 * at) / 1000 for at in (50, 60, 60)]
    assert reuse.saved.mean == pytest.approx(sum(saved) / 3)
    spread = (sum((s - sum(saved) / 3) ** 2 for s in saved) / 2) ** 0.5
    assert reuse.saved.half_width == pytest.approx(4.302653 * spread / 3**0.5, rel=1e-6)  # t of 2 degrees, 97.5 %
    needed = compare_tokens(record)["reuse"]
    assert (needed.reached, needed.seeds) == (3, 3)
    assert needed.updates.mean == pytest.approx(170 / 3)


def test_no_mean_is_given_where_a_seed_does_not_get_there(record):
    needed = compare_tokens(record)
    worse = needed["worse"]
    assert (worse.reached, worse.seeds, compute_savings(record)["worse"].saved, worse.updates) == (1, 3, None, None)
    assert (worse.at_first, needed["reuse"].at_first) == (1, 0)  # its first validation is its last


def test_seeds_that_failed_do_not_get_there(record):
    failed = replace(record.fresh("reuse")[0], status="diverged", value=None, costs={})
    reuse = [failed, *record.fresh("reuse")[1:]]
    changed = put(record, confirmed={**by_arm(record, FRESH), "reuse": reuse})
    found, needed = compute_savings(changed)["reuse"], compare_tokens(changed)["reuse"]
    assert (needed.reached, needed.seeds, found.saved, found.flops) == (2, 3, None, 500)
    gone = [replace(t, status="diverged", value=None) for t in record.fresh("reuse")]
    changed = put(record, confirmed={**by_arm(record, FRESH), "reuse": gone})
    found, needed = compute_savings(changed)["reuse"], compare_tokens(changed)["reuse"]
    assert (needed.reached, needed.seeds, found.saved) == (0, 3, None)  # and not its best trial of the search


def test_where_the_baseline_failed_there_is_nothing_to_reach(record):
    stuck = replace(record.fresh("baseline")[0], metrics={"val/loss": 4.0}, value=4.0)
    baseline = [stuck, *record.fresh("baseline")[1:]]
    changed = put(record, confirmed={**by_arm(record, FRESH), "baseline": baseline}, trivial_loss=4.0)
    needed = compare_tokens(changed)["reuse"]
    assert (needed.reached, needed.seeds, needed.left_out) == (2, 2, 1)
    assert compute_savings(changed)["reuse"].saved.n == 2


def test_a_sweep_without_warm_starts_says_nothing(record):
    arms = {"baseline": {}, "reuse": {"norm": "post"}, "worse": {"norm": "mix"}}
    assert compute_savings(replace(record, spec=Sweep.from_tree({**SPEC, "arms": arms}))) == {}


def test_the_report_shows_it(record):
    baseline = record.spec.compared_with
    (section,) = tabulate_savings(compute_savings(record), compare_tokens(record), baseline, "val/loss")
    rows = {row[0]: dict(zip(section.table.header, row, strict=True)) for row in section.table.rows}
    assert rows["reuse"]["FLOPs saved"].startswith("+51.7 % ± ")
    assert rows["reuse"]["saved"] == "25.0 %"
    assert rows["worse"]["reached"] == "1/3"
    assert any("All seeds of an arm start from the same model" in text for text in section.sentences)
    assert any("Reached at the first validation: worse 1 of 3." in text for text in section.sentences)


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
