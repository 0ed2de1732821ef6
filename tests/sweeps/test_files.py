"""The files of sweeps/: each loads, has a plan, says what it costs and what was published; its arms differ in what they
compare and in nothing else, and can be built. One file of each kind is trained."""

import functools
import json
import math
from pathlib import Path

import pytest
import yaml
from evaluation.task_files import write_tasks
from optuna.storages import InMemoryStorage

from ablate.estimate.flops import CLASSES
from ablate.estimate.inputs import build_skeleton
from ablate.experiment.metrics import list_parts, read_metric
from ablate.experiment.tree import Experiment
from ablate.norms import norm_layers, placements
from ablate.optim.optimizers import build_optimizer
from ablate.scheduler.dry_run import describe_cost, outline
from ablate.sweeps.spec.files import add_earlier_sweeps, load_sweeps
from ablate.sweeps.spec.metrics_validation import find_reading
from ablate.sweeps.spec.references import find_donor, parse_reference
from ablate.sweeps.spec.sweep import Sweep
from ablate.training.train import train as run_experiment
from benchmarks.simulation.sweeps import simulate

FOLDER = Path(__file__).parents[2] / "sweeps"
FILES = sorted(FOLDER.glob("*.yaml"))
load_once = functools.cache(load_sweeps)  # seconds for all files


def list_names(file):
    """The names of the sweeps of a file, by its text."""
    tree = yaml.load(file.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe
    sizes = tree.get("sizes") or tree.get("stages")
    return [f"{tree['name']}-{size}" for size in sizes] if sizes else [tree["name"]]


SWEEPS = {name: file for file in FILES for name in list_names(file)}
"""Name of a sweep -> its file."""


def find_spec(name):
    return next(spec for spec in load_once(SWEEPS[name]) if spec.name == name)


COMPARED = {"rmsnorm": {"norm.layer"}, "rmsnorm-vision": {"norm.layer"}} | {  # for others: what their arms set
    name: {"model.layers", "model.sublayers"} for name in ("reuse-demo-stage1", "reuse-stage1-570m", "reuse-stage1-1b")
}
SHARED = ("data", "model", "optimizer", "schedule", "seed", "trainer")  # the same for a fair comparison
RECIPES = {  # sweeps/dispute.yaml: recipe -> the one setting in which it differs from the base, and its value
    "embedding": ("init.embedding_std", pytest.approx(math.sqrt(2 / 5))), "warmup": ("schedule.warmup_fraction", 0.01),
    "float32": ("trainer.precision", "bf16-mixed"), "clipped": ("trainer.gradient_clip_val", 1.0),
    "rate": ("optimizer.lr", 1e-3),
}  # fmt: skip
FACTORS = {"dispute-small": ("schedule.warmup_fraction",),  # of those, what a file compares
           "dispute-small-mix": ("trainer.gradient_clip_val", "trainer.max_steps", "trainer.precision")}  # fmt: skip
FACTORS |= {f"dispute-{size}": tuple(path for path, _ in RECIPES.values()) for size in ("350m", "1b-50k", "1b")}
FACTORS |= {f"muon-{size}": ("optimizer",) for size in ("small", "1b", "7b")}
FACTORS |= {f"residuals-{size}": ("model.attention.gate",) for size in ("l12", "l24")}  # an arm, and it is said
SMALLEST = {  # of everything: what is left is that the file's arms, optimizer, schedule and search go together
    "data.val_fraction": 0.0005, "trainer.max_steps": 2, "trainer.batch_size": 2, "trainer.accumulate": 1,
    "trainer.val_check_interval": 2, "trainer.num_workers": 0, "schedule.warmup_steps": 1, "confirm.seeds": 0,
    "trainer.diagnose.what": [],
}  # fmt: skip
PERPLEXITIES = {  # papers.md, section 4: sweep -> arm -> perplexity
    "mixln-table1-71m": {"post": 35.18, "deepnorm": 34.87, "pre": 34.77, "mix": 33.12},
    "mixln-table1-130m": {"post": 26.95, "deepnorm": 27.17, "pre": 26.78, "mix": 26.07},
    "mixln-table1-250m": {"post": 1409.09, "deepnorm": 22.77, "pre": 21.92, "mix": 21.39},
    "mixln-table1-1b-50k": {"post": 1411.54, "deepnorm": 1410.94, "pre": 18.65, "mix": 18.18},
    "mixln-table1-1b": {"post": 1390.75, "deepnorm": 1409.08, "pre": 17.02, "mix": 1414.78},
    "mixln-table5": {"post-0": 18.65, "post-4": 18.34, "post-6": 18.18, "post-8": 18.41, "post-10": 18.55,
                     "post-12": 18.86, "post-24": 1434},
    "mixln-table6": {"pre": 23.39, "admin": 24.82, "group": 23.10, "sandwich": 23.26, "mix": 22.33},
    "mixln-table8": {"pre": 32.18, "mix": 29.95, "pre-scaled": 30.63, "mix-scaled": 29.77, "pre-embedding": 31.28,
                     "mix-embedding": 31.19},
    "lns-table1-130m": {"post": 26.95, "deepnorm": 27.17, "pre": 26.73, "mix": 26.07, "lns": 25.76},
    "lns-table1-250m": {"post": 1409.79, "deepnorm": 22.77, "pre": 21.92, "mix": 21.39, "lns": 20.35},
    "lns-table1-350m": {"post": 1368.33, "deepnorm": 1362.59, "pre": 19.58, "mix": 1363.21, "lns": 18.20},
    "lns-table1-1b": {"post": 1390.75, "deepnorm": 1409.08, "pre": 17.02, "mix": 1414.78, "lns": 15.71},
    "lns-table2": {"admin": 27.91, "group": 28.01, "sandwich": 26.51, "mix": 26.07, "lns": 25.76, "pre": 26.73},
    "lns-table4-130m": {"pre": 26.73, "layerscale": 27.93, "skipinit": 27.41, "depth-scaled-init": 26.95,
                        "scaled-init": 26.04, "lns": 25.76, "lns-scaled-init": 25.80},
    "lns-table4-250m": {"pre": 21.92, "layerscale": 23.45, "skipinit": 22.29, "depth-scaled-init": 21.50,
                        "scaled-init": 20.98, "lns": 20.35, "lns-scaled-init": 20.79},
    "lns-table8": {"pre": 26.73, "before-norm": 26.97, "after-sublayers": 26.53, "after-residual": 1358.11,
                   "after-attn": 26.89, "after-mlp": 26.43, "lns": 25.76},
    "reuse-570m": {"baseline": 20.70, "base_reuse": 20.26, "no_layer": 22.61, "one_attn_none": 21.14,
                   "one_attn_attn": 20.24, "one_layer_none": 20.35, "one_layer_attn": 20.05,
                   "one_layer_attn_ffn": 20.28},
    "reuse-1b": {"baseline": 17.65, "base_reuse": 17.77, "one_attn_attn": 17.26, "one_layer_none": 16.90,
                 "one_layer_attn": 16.74},
}  # fmt: skip
AVERAGES = {  # papers.md, section 6: sweep -> arm -> accuracy in percent
    "reuse-570m": {"baseline": 46.27, "base_reuse": 46.69, "no_layer": 45.31, "one_attn_none": 46.57,
                   "one_attn_attn": 47.19, "one_layer_none": 47.20, "one_layer_attn": 47.56,
                   "one_layer_attn_ffn": 46.89},
    "reuse-1b": {"baseline": 49.40, "base_reuse": 49.33, "one_attn_attn": 50.32, "one_layer_none": 50.27,
                 "one_layer_attn": 50.53},
}  # fmt: skip
# M, table 2, and C, table 2 of version 5, in percent: MMLU, BoolQ, ARC-e, PIQA, HellaSwag, OBQA, Winogrande, mean
ACCURACIES = {
    "sft-commonsense-250m": {
        "post": (22.95, 37.83, 26.94, 52.72, 26.17, 11.60, 49.56, 32.54),
        "deepnorm": (23.60, 37.86, 36.62, 61.10, 25.69, 15.00, 49.57, 35.63),
        "pre": (24.93, 38.35, 40.15, 63.55, 26.34, 16.20, 49.01, 36.93),
        "mix": (26.53, 56.12, 41.68, 66.34, 30.16, 18.00, 50.56, 41.34),
    },
    "sft-commonsense-1b": {
        "post": (22.95, 37.82, 25.08, 49.51, 25.04, 13.80, 49.57, 31.96),
        "deepnorm": (23.35, 37.83, 27.06, 52.94, 26.19, 11.80, 49.49, 32.67),
        "pre": (26.54, 62.20, 45.70, 67.79, 30.96, 17.40, 50.51, 43.01),
        "mix": (27.99, 61.93, 48.11, 68.50, 31.35, 18.80, 55.93, 44.66),
    },
    "lns-table3-250m": {"lns": (27.08, 58.17, 45.24, 67.38, 32.81, 18.80, 52.49, 43.14)},
    "lns-table3-1b": {
        "mix": (23.19, 37.83, 25.08, 49.51, 25.04, 11.80, 49.57, 31.72),
        "lns": (28.69, 61.80, 48.85, 67.92, 33.94, 18.60, 54.30, 44.87),
    },
}  # fmt: skip
SCHEMES = ("pre", "sandwich", "lns", "deepnorm", "keel", "hc", "mhc", "attnres", "attnres-block")
DEPTHS = {  # DepthBench, figure 2 without MoDA: layers -> width, MLP, loss of each of SCHEMES
    16: (1216, 3248, (2.759, 2.765, 2.749, 2.790, 2.781, 2.729, 2.720, 2.751, 2.734)),
    20: (1120, 2992, (2.759, 2.754, 2.737, 2.779, 2.768, 2.716, 2.720, 2.728, 2.716)),
    24: (1024, 2736, (2.765, 2.757, 2.740, 2.796, 2.767, 2.702, 2.710, 2.726, 2.719)),
    28: (960, 2560, (2.774, 2.757, 2.740, 2.792, 2.771, 2.714, 2.727, 2.722, 2.726)),
    32: (896, 2400, (2.782, 2.766, 2.739, 2.798, 2.775, 2.700, 2.721, 2.718, 2.730)),
}
CONNECTIONS = {  # hyper-connection-factory: size -> M weights without embedding, updates, loss of Pre-LN, differences
    "38m": (38.5, 3000, 3.4439, {"hc-static": -0.0355, "hc": -0.0699, "mhc": -0.0621, "attnres": -0.0407}),
    "85m": (85.0, 6500, 3.1993, {"hc-static": -0.0075, "hc": -0.0457, "mhc": -0.0495, "attnres": -0.0130}),
    "304m": (303.6, 23_000, 2.8405, {"hc-static": -0.0319, "hc": -0.0360, "mhc": -0.0396, "attnres": -0.0318}),
}
ACCURACIES["lns-table3-250m"] = {**ACCURACIES["sft-commonsense-250m"], **ACCURACIES["lns-table3-250m"]}
ACCURACIES["lns-table3-1b"] = {**ACCURACIES["sft-commonsense-1b"], **ACCURACIES["lns-table3-1b"]}
LENGTHS = {  # papers.md, sections 3 and 6: size -> updates, learning rate
    "71m": (10_000, 1e-3), "130m": (20_000, 1e-3), "250m": (40_000, 1e-3), "350m": (60_000, 1e-3),
    "1b": (100_000, 5e-4), "1b-50k": (50_000, 5e-4),
}  # fmt: skip
PAPERS = ("mixln", "lns")  # files by the recipe of the papers' pre-training
LATER = ("reuse", "sft", "rlhf", "lns-table3", "depthbench", "hyper-connections", "muon")  # with a recipe of their own
PRICED = (*PAPERS, *LATER, "dispute", "minimax", "derf")  # with a header that says what it costs
UNSEARCHED = {"llama-7b"}  # at 7B the learning rate is the paper's
HANDICAPPED = {"init-vision": "deepnorm"}  # an arm with fewer points: its weights have a scale of their own


@pytest.fixture(params=SWEEPS)
def spec(request):
    return find_spec(request.param)


def below(path, parts):
    return any(path == part or path.startswith(f"{part}.") for part in parts)


def test_the_outline_of_each_names_every_arm_and_asks_for_no_data(spec):
    text = outline(spec)
    assert text.startswith(f"sweep {spec.name}: ")
    assert f"{spec.name}-".startswith(f"{SWEEPS[spec.name].stem}-")
    plain = spec.without_grid()
    for arm in plain.all_arms:
        trials = plain.trials(arm)
        plural = "trial" if trials == 1 else "trials"
        what = f"{trials} {plural.replace('trial', 'point')}" if spec.at_grid else f"{trials} {plural}"
        length = f"{'at most ' if spec.method.staged else ''}{plain.own_base(arm).trainer.max_steps:,} updates"
        assert f"arm {arm}: {what} of {length}" in text
    assert ("the time of an alignment is not estimated" if plain.base(arm).align else "hours of an H100") in text


def test_the_arms_differ_only_in_what_they_compare(spec):
    spec = spec.without_grid()
    first, *others = [spec.base(arm).flat() for arm in spec.all_arms]
    differing = {path for other in others for path in {*first, *other} if first.get(path) != other.get(path)}
    set_by_arms = {path for arm in spec.all_arms.values() for path in [*arm.settings, *arm.search]}
    compared = COMPARED.get(spec.name, set_by_arms)
    assert differing or not others, "nothing is compared"
    first_stage = "stage1" in spec.name  # the models that others start from
    factors = FACTORS.get(spec.name, ())
    confounded = [p for p in differing if below(p, SHARED) and not below(p, factors) and not first_stage]
    assert not [p for p in differing if not below(p, compared)] + confounded


def test_each_arm_is_tuned_over_the_same_range_with_the_same_budget(spec):
    if spec.at_grid:  # at the same points on as many seeds
        points = {len([c for c in spec.cells.values() if c.arm == arm]) for arm in spec.own_arms}
        assert points == {math.prod(len(entry) for entry in spec.search.values())}
        if spec.designed:  # whose levels set the rate
            return
        assert len({spec.base(arm).optimizer.lr for arm in spec.all_arms}) == len(
            spec.search.get("optimizer.lr", [None])
        )
        return
    trials = {arm: spec.trials(arm) for arm in spec.all_arms}
    if handicapped := HANDICAPPED.get(spec.name):
        assert trials.pop(handicapped) < min(trials.values())
    assert len(set(trials.values())) == 1
    shared = [part for part in SHARED if part not in FACTORS.get(spec.name, ())]
    own = {path for arm in spec.all_arms.values() for path in arm.search if below(path, shared)}
    assert own == set()
    if spec.name not in UNSEARCHED:
        assert "optimizer.lr" in spec.search
        assert len({str(spec.space(arm)["optimizer.lr"]) for arm in spec.all_arms}) == 1


def test_each_arm_of_each_can_be_built_with_its_optimizer(spec):
    """At its own size, on the meta device, at both ends of what it searches; twins once."""
    plain, built = spec.without_grid(), []
    for arm in plain.all_arms:
        for end in (0, -1):
            trained = plain.at(arm, {path: values[end] for path, values in plain.corners(arm).items()})
            parts = (trained.model, trained.norm, trained.init, trained.warm_start, trained.optimizer.kind)
            if parts in built:
                continue
            built.append(parts)
            shape = trained.data.input_shape or ((16,) if trained.model.per_token else (3, 32, 32))
            model = build_skeleton(trained, trained.model.vocabulary(CLASSES), shape)
            build_optimizer(trained.optimizer, model)


@pytest.mark.parametrize("name", PERPLEXITIES)
def test_what_was_published_is_shown_beside(name):
    spec = find_spec(name)
    metric = "mean(val/perplexity, val/wikitext/perplexity)" if name.startswith("reuse") else "val/perplexity"
    quoted = [entry for entry in spec.published if entry.metric != spec.objective.metric]
    assert {entry.metric for entry in quoted} == {metric}
    assert {arm: value for entry in quoted for arm, value in entry.values.items()} == PERPLEXITIES[name]


@pytest.mark.parametrize("name", AVERAGES)
def test_two_stage_is_judged_by_the_downstream_average_of_its_paper(name):
    (spec,) = load_sweeps(FOLDER / f"{name}.yaml")
    metrics = {"lambada_openai": "acc", "winogrande": "acc"}
    tasks = [*metrics, "piqa", "hellaswag", "arc_easy", "arc_challenge", "openbookqa"]
    parts = [f"eval/{task}/{metrics.get(task, 'acc_norm')}" for task in tasks]
    assert list_parts(spec.objective.metric) == parts
    assert spec.objective.direction == "maximize"
    (quoted,) = (entry for entry in spec.published if entry.metric == spec.objective.metric)
    assert {arm: round(100 * value, 2) for arm, value in quoted.values.items()} == AVERAGES[name]
    base = spec.base("baseline")
    assert (sorted(base.evaluation.tasks), base.evaluation.shots) == (sorted(tasks), 0)
    assert find_reading(base) == 1000
    assert (base.data.val_tokens, base.data.val_sets["wikitext"].tokens) == (10_000_000, 300_000)


def test_the_grids_of_two_stage_hold_every_best_rate_of_its_paper_inside():
    rates = {
        "reuse-570m": (8e-4, 1e-3, 2e-3, 4e-3, 3e-3),
        "reuse-1b": (6e-4, 9e-4),
        "reuse-stage1-570m": (8e-4, 1e-3, 2e-3),
        "reuse-stage1-1b": (2e-3,),
    }
    for name, best in rates.items():
        spec = find_spec(name)
        assert {*best} <= {*spec.search["optimizer.lr"][1:-1]}, name


@pytest.mark.parametrize("name", ACCURACIES)
def test_the_accuracies_after_fine_tuning_are_shares_and_their_mean(name):
    spec = find_spec(name)
    names = ("mmlu", "boolq", "arc_easy", "piqa", "hellaswag", "openbookqa", "winogrande")
    metrics = [f"eval/{task}/acc" for task in names]
    assert [entry.metric for entry in spec.published] == [*metrics, f"mean({', '.join(metrics)})"]
    for column, entry in enumerate(spec.published):
        assert entry.values == {arm: round(row[column] / 100, 4) for arm, row in ACCURACIES[name].items()}


def test_the_accuracies_of_vision_transformers_are_shares():
    values = {name: find_spec(name).published[0].values for name in ("mixln-table4-tiny", "mixln-table4-small")}
    assert values["mixln-table4-tiny"] == {"pre": 0.6730, "mix": 0.6734}
    assert values["mixln-table4-small"] == {"pre": 0.7599, "mix": 0.7640}
    (lns,) = load_sweeps(FOLDER / "lns-table5.yaml")
    assert lns.published[0].values == {"pre": 0.6791, "lns": 0.6643, "after-sublayers": 0.6875}
    derf = find_spec("derf")
    assert derf.published[0].values == {"layernorm": 0.823, "dyt": 0.825, "derf": 0.828}
    assert {derf.base(arm).norm.layer.alpha for arm in ("dyt", "derf")} == {0.5}  # of both in their ViTs


@pytest.mark.parametrize("name", [name for name, file in SWEEPS.items() if file.stem.startswith(PRICED)])
def test_the_header_says_what_it_costs_and_the_papers_point_comes_first(name):
    file, spec = SWEEPS[name], find_spec(name)
    if "demo" in spec.name or "small" in spec.name:
        pytest.skip("its cost is minutes")
    header = " ".join(line.lstrip("# ") for line in file.read_text().splitlines() if line.startswith("#"))
    assert describe_cost(spec) in header
    base = spec.base(next(iter(spec.all_arms)))
    size = spec.name.removeprefix(f"{file.stem}-")
    if size in LENGTHS and not file.stem.startswith(LATER):
        steps, lr = LENGTHS[size]
        assert base.trainer.max_steps == steps
        assert spec.at_grid or spec.fixed[0] == {"optimizer.lr": lr}
    if base.model.kind == "llama" and not file.stem.startswith(LATER):
        assert (base.optimizer.kind, base.optimizer.betas, base.optimizer.weight_decay) == ("adam", (0.9, 0.999), 0)
        assert (base.trainer.batch_size, base.data.seq_len, base.trainer.gradient_clip_val) == (512, 256, None)
        assert (base.schedule.kind, base.schedule.warmup_fraction, base.schedule.final_fraction) == ("cosine", 0.1, 0.1)


def test_each_recipe_of_the_dispute_changes_one_setting_in_each_placement():
    spec = find_spec("dispute-350m")
    norms, recipes = ("pre", "mix", "post", "deepnorm", "deepnorm_code", "lns"), ("base", *RECIPES)
    assert set(spec.all_arms) == {f"norm={norm} recipe={recipe}" for norm in norms for recipe in recipes}
    for norm in norms:
        base = spec.base(f"norm={norm} recipe=base")
        assert (base.init.embedding_std, base.trainer.precision, base.optimizer.lr) == (0.02, "bf16-true", 5e-4)
        for recipe, (path, value) in RECIPES.items():
            changed = spec.base(f"norm={norm} recipe={recipe}").flat()
            assert {p: v for p, v in changed.items() if v != base.flat()[p]} == {path: value}


def test_the_figures_that_are_disputed_stand_beside_the_recipe_that_they_are_of():
    entries = {spec.name: spec.published[0].values for spec in load_once(FOLDER / "dispute.yaml")}
    ours = {"deepnorm": "deepnorm_code"}  # what both papers call DeepNorm
    for name, table, recipe in (
        ("dispute-350m", "lns-table1-350m", "base"),
        ("dispute-1b-50k", "mixln-table1-1b-50k", "embedding"),
        ("dispute-1b", "lns-table1-1b", "warmup"),
    ):
        expected = {f"norm={ours.get(n, n)} recipe={recipe}": value for n, value in PERPLEXITIES[table].items()}
        assert entries[name] == expected


def test_the_parts_of_minimax_are_those_of_deepnorm_and_of_post_ln():
    (spec, *_) = load_once(FOLDER / "minimax.yaml")
    norms = {
        (at, factor, init): spec.base(f"norms={at} factor={factor} init={init}").norm
        for at in ("output", "input")
        for factor in ("none", "deepnorm")
        for init in ("normal", "deepnorm")
    }
    assert len(norms) == len(spec.all_arms)
    assert norms["output", "deepnorm", "deepnorm"] == placements.parse("deepnorm")
    assert norms["input", "deepnorm", "normal"] == placements.parse("minimax")
    plain = norms["output", "none", "normal"]
    assert (plain.scale_residual, plain.scale_init) == (False, False)  # Post-LN: tests/norms compares the two


def test_two_stage_has_the_recipe_of_its_paper():
    for batch, size in ((560, "570m"), (1008, "1b")):
        (spec,) = load_sweeps(FOLDER / f"reuse-{size}.yaml")
        (before,) = load_sweeps(FOLDER / "reuse-stage1.yaml", size=size)
        base = spec.base("baseline")
        for arm in before.all_arms:  # the same but for the model's depth
            small = before.base(arm).flat()
            differing = {path for path, value in base.flat().items() if small.get(path) != value}
            measured = ("evaluation.", "data.val_sets.", "trainer.val_")
            differing -= {path for path in differing if path.startswith(measured)}
            assert differing <= {"model.layers", "model.sublayers", "optimizer.lr"}
        assert (base.trainer.batch_size, base.trainer.max_steps, base.trainer.gradient_clip_val) == (batch, 20_000, 1.0)
        assert (base.optimizer.betas, base.optimizer.weight_decay) == ((0.9, 0.95), 0.1)
        assert (base.schedule.warmup(20_000), base.init.kind, base.data.seq_len) == (1000, "scaled", 1024)


@pytest.mark.parametrize(
    ("file", "size", "first", "pretrained_size"),
    [
        *(("sft-commonsense", size, "mixln-table1", size) for size in ("130m", "250m")),
        ("sft-commonsense", "1b", "mixln-table1", "1b-50k"),
        *(("lns-table3", size, "lns-table1", size) for size in ("130m", "250m", "1b")),
    ],
)
def test_fine_tuning_takes_all_of_the_same_arm_of_the_pre_training(file, size, first, pretrained_size):
    (spec,) = load_sweeps(FOLDER / f"{file}.yaml", size=size)
    (before,) = load_sweeps(FOLDER / f"{first}.yaml", size=pretrained_size)
    assert set(spec.all_arms) == set(before.all_arms)
    for arm in spec.all_arms:
        base, pretrained = spec.base(arm), before.base(arm)
        assert find_donor(spec, arm) == (before.name, arm)
        assert base.warm_start.copied == ("all",)
        assert (base.model, base.norm) == (pretrained.model, pretrained.norm)
        assert base.data.tokenizer == pretrained.data.tokenizer
        epochs = base.trainer.max_steps * base.trainer.batch_size / (170_420 * (1 - base.data.val_fraction))
        assert round(epochs, 2) == 3.00


def test_alignment_goes_from_the_pre_training_to_a_policy_with_one_judge_for_all_arms():
    sft, reward, policy = load_sweeps(FOLDER / "rlhf.yaml")
    (before,) = load_sweeps(FOLDER / "mixln-table1.yaml", size="1b-50k")
    assert [spec.objective.metric for spec in (sft, reward, policy)] == ["val/loss", "align/accuracy", "align/reward"]
    for arm in ("pre", "mix"):
        starts = [find_donor(spec, arm) for spec in (sft, reward, policy)]
        assert starts == [(before.name, arm), (sft.name, arm), (sft.name, arm)]
        bases = [spec.base(arm) for spec in (before, sft, reward, policy)]
        assert len({(base.model, base.norm, base.data.tokenizer) for base in bases}) == 1
        assert {base.data.seq_len for base in bases[1:]} == {512}
        assert bases[3].align.reward == "sweep:rlhf-reward/pre"
        assert bases[2].data == bases[3].data  # with the same pairs held out
    assert policy.published[0].values == {"pre": 0.75, "mix": 1.32}  # papers.md, section 4
    assert round(sft.base("pre").trainer.max_steps * 128 / (52_002 * 0.99), 2) == 3.00


@pytest.mark.parametrize("layers", DEPTHS)
def test_each_depth_has_the_shape_and_the_losses_of_depthbench(layers):
    spec, (hidden, mlp, losses) = find_spec(f"depthbench-l{layers}"), DEPTHS[layers]
    base, (published,) = spec.base("pre"), spec.published
    assert (base.model.layers, base.model.hidden, base.model.mlp, base.model.heads) == (layers, hidden, mlp, 16)
    assert spec.search == {"optimizer.lr": [5e-4, 1e-3, 2e-3, 5e-3]}
    assert base.trainer.max_steps * base.trainer.batch_size * base.data.seq_len == pytest.approx(8e9, rel=0.005)
    weights = base.model.layer_parameters() + 2 * 50_280 * hidden
    assert weights == pytest.approx(405e6, rel=0.03)
    assert (published.metric, published.values) == ("val/loss", dict(zip(SCHEMES, losses, strict=True)))
    assert published.tokenizer == base.data.tokenizer  # so that the losses can be compared


@pytest.mark.parametrize("size", CONNECTIONS)
def test_each_size_of_the_connections_has_the_published_weights_tokens_and_losses(size):
    spec, (millions, updates, pre, differences) = find_spec(f"hyper-connections-{size}"), CONNECTIONS[size]
    base, (published,) = spec.base("pre"), spec.published
    assert round(base.model.layer_parameters() / 1e6, 1) == pytest.approx(millions, abs=0.1)  # these have no norms
    assert base.trainer.max_steps == updates
    assert updates * base.trainer.batch_size * base.data.seq_len == pytest.approx(20 * millions * 1e6, rel=0.03)
    assert published.values == {"pre": pre} | {arm: round(pre + less, 4) for arm, less in differences.items()}


def test_vision_has_the_recipe_of_convnext():
    assert {spec.base("mix").norm.alpha for spec in load_sweeps(FOLDER / "mixln-table4.yaml")} == {0.25}
    for file in ("mixln-table4", "lns-table5"):
        check_recipe_of_convnext(load_sweeps(FOLDER / f"{file}.yaml"))


def check_recipe_of_convnext(specs):
    for spec in specs:
        base = spec.base("pre")
        assert (base.optimizer.weight_decay, base.trainer.batch_size) == (0.05, 4096)
        assert base.trainer.max_steps == 120 * 1_281_167 // 4096
        assert base.schedule.warmup(base.trainer.max_steps) == round(20 * 1_281_167 / 4096)
        assert spec.fixed[0] == {"optimizer.lr": 4e-3}
        changed = base.data.augment
        assert (changed.mixup, changed.cutmix, changed.random_erasing, changed.label_smoothing) == (0.8, 1.0, 0.25, 0.1)
        assert (changed.randaugment, base.model.drop_path) == ("rand-m9-mstd0.5-inc1", 0.1)


def alignable(folder):
    """What gives the later stages of sweeps/rlhf.yaml a few short pairs."""
    rows = [{"prompt": f"is it {n}?", "chosen": "yes", "rejected": "no"} for n in range(20)]
    (folder / "pairs.json").write_text(json.dumps(rows))
    pairs = {"data": "preferences", "data.files": str(folder / "pairs.json"), "data.dataset": None}
    pairs |= {"data.tokenizer": "bytes", "data.template": "plain", "trainer.batch_size": 4}
    return {f"stages.{stage}.{path}": value for stage in ("reward", "policy") for path, value in pairs.items()} | {
        "stages.policy.align.length": 4
    }


TRAINED = {  # what each kind of file has that the others have not
    "mixln-table1": "sizes, a search and the paper's point first",
    "mixln-table4": "images, augmented",
    "demo-rungs": "rungs",
    "dispute-small-mix": "a factorial, in which the number of updates is a factor",
    "reuse-570m": "models of another sweep, and downstream tasks",
    "rmsnorm-convpool": "a family without a residual stream",
    "segmentation": "maps of classes",
}


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, id=file.stem, marks=[] if file.stem in TRAINED else pytest.mark.chaos) for file in FILES],
)
def test_each_trains_at_the_smallest_scale_on_data_that_is_there(file, store, tmp_path):
    """The smallest size of each file at a thousandth, or at one update, every arm, at one learning rate: a trial of the
    study, trained, without a process."""
    specs = load_sweeps(file)
    first = specs[0]
    model = first.without_grid().base(next(iter(first.without_grid().all_arms))).model
    data = {"data": "topics", "data.seq_len": 16} if model.per_token else {"data": "digits"}
    if model.kind == "vit":
        data["model.patch_size"] = 2
    if "targets: mask" in file.read_text():  # which digits do not have
        data = {"data.draws": 1, "data.val_draws": 1}
    small = {**data, **SMALLEST} | ({"trainer.compile": False} if "compile: true" in file.read_text() else {})
    staged, several = file.stem.startswith(LATER), file.stem == "rlhf"
    if several:
        pytest.importorskip("trl")
        small |= alignable(tmp_path)
    if "tasks: [" in file.read_text():
        pytest.importorskip("lm_eval")
        small |= {"evaluation.task_data": str(write_tasks(tmp_path / "tasks")), "evaluation.every_n_steps": 2}
    if staged or first.sampler.kind != "grid":
        small["budget.trials"] = 1
    if first.at_grid:
        small["confirm.seeds"] = 1
    if first.method.staged:  # one update has no rungs
        small |= {"sampler": "random", "budget.trials": 1}
        without = tmp_path / file.name
        without.write_text(file.read_text().replace("  method: rungs\n", ""))
        file = without
    updates = min(spec.base(arm).trainer.max_steps for spec in specs for arm in spec.all_arms)
    scale = {"factor": max(0.001, 1 / updates), "model": True}
    if first.contrasts:  # of a factorial; many arms
        small["model.layers"] = 4
    if file.stem == "dispute-small-mix":  # where the number of updates is a factor, which only a file can set
        scale, shorter = {}, tmp_path / file.name
        shorter.write_text(file.read_text().replace("trainer.max_steps: 400", "trainer.max_steps: 4"))
        file = shorter
    wanted = load_sweeps(file, small, **scale)[: None if several else 1]
    donors, results, known = {}, {}, {}
    for spec in add_earlier_sweeps(file, wanted, small, **scale):
        assert bool(spec.scale) == bool(scale)
        results.clear()

        def run(arm, params, seed, spec=spec):
            trained = spec.without_grid().at(arm, params)
            found = {path: parse_reference(given) for path, given in trained.list_references().items()}
            runs = {path: donors[title or spec.name, donor] for path, (title, donor) in found.items()}
            trained = Experiment.from_mapping(trained.to_tree(), runs)
            if arm not in results:
                tree = trained.to_tree()
                del tree["optimizer"]["lr"]  # cells of a grid that differ in nothing else are trained once
                key = json.dumps(tree, sort_keys=True)
                results[arm] = known[key] = known.get(key) or run_experiment(trained)
                donors[spec.name, arm] = results[arm].run_id
            value = read_metric(results[arm].metrics, spec.objective.metric)
            return float("nan") if value is None else value

        record = simulate(spec, run, InMemoryStorage(), trials=len(spec.all_arms))
    assert sum(t.status == "completed" for t in record.runs) == len(spec.all_arms)
    for arm, result in results.items():
        assert result.step == (4 if "change=longer" in arm else 2), arm
        if spec.at_grid:
            continue
        first = spec.fixed[0] if spec.fixed else {}
        assert {path: record.search(arm)[0].params[path] for path in first} == first


def test_the_norm_layers_of_a_gru_and_of_a_convpool_are_those_of_their_paper():
    """Zhang and Sennrich 2019, table 10: test errors in percent."""
    errors = {"none": 8.96, "batchnorm": 8.25, "layernorm": 10.49, "rmsnorm": 8.83, "prmsnorm": 10.37}
    (gru,) = load_sweeps(FOLDER / "rmsnorm-gru.yaml")
    digits, cifar = load_sweeps(FOLDER / "rmsnorm-convpool.yaml")
    (published,) = cifar.published
    assert {arm: round(100 * (1 - accuracy), 2) for arm, accuracy in published.values.items()} == errors
    assert (gru.published, digits.published, published.metric) == ([], [], "val/accuracy")
    for sweep in (gru, digits, cifar):
        assert sweep.baseline == "rmsnorm"
        assert {*errors} - {"batchnorm"} <= {*sweep.all_arms} | {"prmsnorm"}
        assert {sweep.base(arm).norm.kind for arm in sweep.all_arms} == {"summed_inputs"}
    shares = [gru.base(f"prmsnorm_{percent}").norm.layer.p for percent in (25, 6, 2)]
    assert shares == [1 / 4, 1 / 16, 1 / 64]
    assert cifar.base("prmsnorm").norm.layer.p == 0.125
    assert not gru.base("layernorm").norm.layer.bias


def test_the_norm_layers_are_compared_on_language_and_on_vision_with_batch_norm_on_vision_alone():
    language = ["none", "layernorm", "rmsnorm", "prmsnorm", "groupnorm", "dyt"]
    for name, layers in {"rmsnorm": language, "rmsnorm-vision": [*language, "batchnorm"]}.items():
        sweep = Sweep.load(FOLDER / f"{name}.yaml")
        assert set(sweep.all_arms) == set(layers)
        for arm in sweep.all_arms:
            norm = sweep.base(arm).norm
            assert (norm.kind, norm.layer) == ("pre", norm_layers.parse(arm))  # at its defaults
