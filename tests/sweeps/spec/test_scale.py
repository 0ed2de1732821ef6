"""A share of a sweep: what shrinks, what stays, and that it says so."""

from __future__ import annotations

import re

import pytest
import yaml

from ablate.config.errors import ConfigError
from ablate.estimate.flops import estimate_work
from ablate.estimate.gpus import find_gpu
from ablate.estimate.plan import Assumed, plan
from ablate.experiment.tree import Experiment
from ablate.models import list_families, models
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.scale import describe_changes, describe_scale, scale_sweep
from ablate.sweeps.spec.sweep import Sweep

SETTINGS = {
    "model": "llama-71m",
    "data": {"kind": "topics", "seq_len": 256},
    "schedule": {"warmup_steps": 1000},
    "trainer": {"max_steps": 10_000, "batch_size": 512, "val_check_interval": 500},
    "evaluation": {"tasks": "piqa", "every_n_steps": 1000},
}
TREE = {
    "name": "full",
    "experiment": SETTINGS,
    "arms": {"pre": {"norm": "pre"}, "mix": {"norm": "mix"}},
    "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True}},
    "fixed": [{"optimizer.lr": 1e-3}],
    "budget": {"trials": 4},
    "pruner": "median",
    "confirm": {"seeds": 2},
}


@pytest.fixture
def full():
    return Sweep.from_tree(TREE)


def test_lengths_shrink_alike_and_the_rest_stays(full):
    small = scale_sweep(full, 0.01)
    base, before = small.base("mix"), full.base("mix")
    assert (base.trainer.max_steps, base.trainer.val_check_interval, base.evaluation.every_n_steps) == (100, 5, 10)
    assert base.schedule.warmup(100) / 100 == before.schedule.warmup(10_000) / 10_000 == 0.1
    assert (base.model, base.norm, base.data, base.trainer.batch_size) == (
        before.model, before.norm, before.data, before.trainer.batch_size,
    )  # fmt: skip
    assert (small.search, small.fixed, small.confirm) == (full.search, full.fixed, full.confirm)
    assert small.name == "full-scale0.01"
    again = Sweep.from_tree(small.to_tree())
    assert again == small


def test_with_the_model_tokens_per_parameter_stay_and_so_do_depth_and_what_goes_by_it(full):
    small = scale_sweep(full, 0.1, model=True)
    model, before = small.base("mix").model, full.base("mix").model
    assert model.layer_parameters() / before.layer_parameters() == pytest.approx(0.1, rel=0.1)
    assert model.layers == before.layers
    assert model.mlp / model.hidden == pytest.approx(before.mlp / before.hidden, rel=0.05)
    assert small.base("mix").norm == full.base("mix").norm
    assert small.base("mix").trainer.max_steps == 1000
    assert small.name == "full-scale0.1-model"


def test_the_base_of_a_parametrisation_is_narrowed_with_the_model():
    mup = {"kind": "mup", "base": {"hidden": 128, "layers": 4}}
    arms = {"pre": {"norm": "pre", "parametrization": mup}, "mix": {"norm": "mix", "parametrization": mup}}
    full = Sweep.from_tree({**TREE, "arms": arms})
    before, after = full.base("mix"), scale_sweep(full, 0.1, model=True).base("mix")
    assert after.model.hidden < before.model.hidden
    assert after.multipliers.output == pytest.approx(before.multipliers.output, rel=0.02)
    assert before.multipliers.output == 128 / before.model.hidden


def test_it_says_that_it_is_not_the_full_setting(full):
    assert describe_scale(full) == ""
    assert scale_sweep(full, 1) is full
    text = describe_scale(scale_sweep(full, 0.01))
    assert text == (
        "Not the full setting (--scale 0.01): a trial has 100 of 10,000 updates and 13.1 M of 1.31 G tokens."
    )
    with_model = describe_scale(scale_sweep(full, 0.01, model=True))
    assert "the layers have 392 k of 37.8 M parameters" in with_model
    assert "--scale 0.01 --scale-model" in with_model


def test_arms_of_their_own_length_keep_the_proportion():
    arms = {"pre": {"norm": "pre"}, "long": {"norm": "post", "trainer": {"max_steps": 20_000}}}
    small = scale_sweep(Sweep.from_tree({**TREE, "arms": arms, "confounds": ["trainer"], "pruner": "none"}), 0.1)
    assert [small.base(arm).trainer.max_steps for arm in arms] == [1000, 2000]
    assert small.base("long").norm.kind == "post"


def test_what_cannot_be_scaled_is_refused(full):
    for factor in (0, -1, 1.5):
        with pytest.raises(ConfigError, match="--scale: must be above 0 and at most 1"):
            scale_sweep(full, factor)
    with pytest.raises(ConfigError, match=r"--scale: leaves less than one of the 10,000 updates .* accepted: 0.0001 "):
        scale_sweep(full, 1e-10)
    with pytest.raises(ConfigError, match="is scaled already"):
        scale_sweep(scale_sweep(full, 0.5), 0.5)
    tree = {**TREE, "search": {"trainer.max_steps": [3000, 6000]}, "fixed": [], "pruner": "none"}
    searching = Sweep.from_tree(tree)
    with pytest.raises(ConfigError, match=r"trainer.max_steps: is searched for pre"):
        scale_sweep(searching, 0.5)


@pytest.mark.parametrize("updates", [1, 3, 7, 45, 300, 999, 1000, 10_000, 57_220, 95_000, 123_457])
def test_the_smallest_scale_that_is_named_is_accepted_and_leaves_one_update(updates):
    settings = {"trainer.max_steps": updates, "schedule.warmup_steps": 0}
    arms = {"pre": {"norm": "pre"}, "long": {"norm": "post", "trainer": {"max_steps": 2 * updates + 5}}}
    tree = {"name": "short", "experiment": settings, "arms": arms, "search": TREE["search"], "confounds": ["trainer"]}
    spec = Sweep.from_tree(tree)
    with pytest.raises(ConfigError, match="Smallest accepted: ") as caught:
        scale_sweep(spec, 0.9 / updates)
    least = float(re.search(r"accepted: (\S+) ", str(caught.value)).group(1))
    assert 1 <= round(least * updates, 6) < 1.02
    assert scale_sweep(spec, least).base("pre").trainer.max_steps == 1


@pytest.mark.parametrize("share", [1.0, 0.3, 0.1, 0.01])
@pytest.mark.parametrize("name", models.presets)
def test_every_named_model_can_be_narrowed(name, share):
    model = Experiment.from_mapping({"model": name}).model
    made = Experiment.from_mapping({"model": name}, {f"model.{k}": v for k, v in model.narrowed(share).items()}).model
    assert made.layers == model.layers
    assert made.hidden % 4 == 0
    if share == 1:
        assert made.layer_parameters() == pytest.approx(model.layer_parameters(), rel=0.005)
    elif made.hidden >= 40:  # below, four features are a large step
        assert made.layer_parameters() / model.layer_parameters() == pytest.approx(share, rel=0.25)


def test_grouped_queries_still_divide_the_heads():
    grouped = {"kind": "llama", "hidden": 512, "heads": 8, "kv_heads": 4, "mlp": 1368}
    model = Experiment.from_mapping({"model": grouped}).model
    for share in (0.9, 0.5, 0.3, 0.05):
        made = model.narrowed(share)
        assert made["heads"] % made["kv_heads"] == 0


@pytest.mark.parametrize("family", list_families())
def test_the_parameters_of_the_layers_are_those_of_their_matrices(tiny, family):
    settings = {"model.kv_heads": 1} if family == "llama" else {}
    experiment, model, _ = tiny(family, settings)
    matrices = [p.weight.numel() for p in model.projections() if p.role not in ("embedding", "head")]
    assert experiment.model.layer_parameters() == sum(matrices)


def test_work_is_six_operations_for_each_weight_and_token_and_the_attention():
    llama = Experiment.from_mapping(SETTINGS, {"model.vocab_size": 32_000, "evaluation.tasks": []})
    weights = llama.model.layer_parameters() + 32_000 * 512
    tokens = 10_000 * 512 * 256
    found = estimate_work(llama)
    assert found.items == tokens
    assert found.flops == tokens * (6 * weights + 6 * 12 * 512 * 256)  # causal attention is half of it
    vit = Experiment.from_mapping({"model": "vit-tiny", "data": {"kind": "image_folder", "root": "x"}})
    images, patches = vit.trainer.max_steps * vit.trainer.batch_size, 1 + 14 * 14
    flops = patches * (6 * 12 * 12 * 192**2 + 12 * 12 * 192 * patches)  # of the layers
    flops = images * (flops + 6 * 192 * (3 * 16**2 * 14 * 14 + 1000))  # with the embedding of patches and the head
    assert (estimate_work(vit).items, estimate_work(vit).flops) == (images, flops)


@pytest.mark.parametrize(
    ("model", "more"),
    [
        *((f"llama-{size}", {"model.vocab_size": 32_000}) for size in ("9m", "71m", "1b")),
        ("vit-tiny", {"data": {"kind": "image_folder", "root": "x", "image_size": 224}}),
        ("llama-71m", {"model.vocab_size": 32_000, "trainer.activation_checkpointing": True}),
        ("llama-71m", {"model.vocab_size": 32_000, "trainer.precision": "32-true"}),
        *(
            pytest.param(
                model,
                {**more, "warm_start": {"from": "somewhere", "copy": "all"}, "lora": {"rank": 16}},
                marks=pytest.mark.addons,
            )
            for model, more in (
                ("llama-71m", {"model.vocab_size": 32_000}),
                ("vit-tiny", {"data": {"kind": "image_folder", "root": "x", "image_size": 224}}),
            )
        ),
    ],
)
def test_a_dry_run_and_a_plan_tell_the_same_hours(model, more):
    run = Experiment.from_mapping({"model": model}, more)
    planned = plan(run, Assumed(find_gpu("h100-80gb")))
    assert estimate_work(run) == planned.work


CHANGED = {
    "name": "full",
    "experiment": {
        "model": "llama-71m",
        "data": {"kind": "c4", "seq_len": 256, "train_tokens": 2 * 10**9},
        "trainer": {"max_steps": 10_000, "batch_size": 512, "val_check_interval": 500},
    },
    "arms": {"pre": {"norm": "pre"}, "mix": {"norm": "mix"}},
    "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True}},
    "confirm": {"seeds": {"min": 3, "max": 8}, "effect": 0.01},
    "budget": {"trials": 6},
}


@pytest.fixture
def load(tmp_path):
    def scale(overrides, factor=0.01, tree=CHANGED, **more):
        file = tmp_path / "full.yaml"
        file.write_text(yaml.safe_dump(tree))
        return load_sweeps(file, overrides, factor=factor, **more)[0]

    return scale


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"trainer.batch_size": 8}, ["trainer.batch_size 8 instead of 512"]),
        ({"experiment.trainer.batch_size": 8}, ["trainer.batch_size 8 instead of 512"]),
        ({"trainer": {"batch_size": 8}}, ["trainer.batch_size 8 instead of 512"]),
        ({"trainer.batch_size": 512, "norm": "post", "name": "mine"}, []),  # arms have their own norms
        ({"trainer.val_check_interval": 50}, ["trainer.val_check_interval 50 instead of 500"]),  # of the file, not 5
        ({"data": "topics", "data.seq_len": 64}, ["data topics instead of c4", "data.seq_len 64 instead of 256"]),
        ({"data.kind": "topics"}, ["data topics instead of c4"]),
        (
            {"data": {"kind": "text", "dataset": None, "subset": None, "val_split": None, "files": ["a.txt"]}},
            ["data text instead of c4", "data.dataset null instead of allenai/c4", "data.subset null instead of en",
             "data.val_split null instead of validation", "data.files ['a.txt'] instead of []"],
        ),
        ({"model": "llama-9m"}, ["model llama-9m instead of llama-71m"]),
        ({"budget.trials": 2, "confirm.seeds": 2}, ["budget.trials 2 instead of 6", "confirm.seeds 2 instead of min=3"
         " max=8"]),
        ({"search.optimizer.lr": [1e-3]}, ["search.optimizer.lr [0.001] instead of 0.0001 ... 0.01 (log)"]),
        ({"trainer.max_steps": 20}, ["trainer.max_steps 20 instead of 10000"]),
    ],
)  # fmt: skip
def test_each_changed_setting_has_its_value_and_that_of_the_file(load, overrides, said):
    spec = load(overrides)
    assert [f"{path} {change}" for path, change in spec.scale.changed.items()] == said
    assert Sweep.from_tree(spec.to_tree()) == spec
    assert "and further settings" in describe_scale(spec) or not said


def test_the_note_names_them_after_the_length(load):
    text = describe_scale(load({"trainer.batch_size": 8, "data.seq_len": 64, "trainer.max_steps": 20}))
    assert text == (
        "Not the full setting (--scale 0.01 and further settings): a trial has 20 of 10,000 updates and 10.2 k of "
        "1.31 G tokens. The command line set trainer.batch_size 8 instead of 512 and data.seq_len 64 instead of 256."
    )
    assert load({"trainer.batch_size": 8}, factor=1).scale is None
    assert "command line" not in describe_scale(load({}))


def test_fields_of_the_method_are_set_at_a_scale_too(load):
    """The scaled sweep has its method outside of `search`, where the file has it inside."""
    tree = {**CHANGED, "search": {"method": "rungs", "keep": 0.5, **CHANGED["search"]}}
    changed = load({"search.rungs": 4}, tree=tree, factor=0.5)
    assert (changed.method.kind, changed.method.rungs, changed.method.keep) == ("rungs", 4, 0.5)
    assert load({"search.method": "trials"}, tree=tree, factor=0.5).method.kind == "trials"
    assert load({"search.optimizer.lr": [1e-3, 2e-3]}, factor=0.5).method.kind == "trials"


def test_of_many_the_first_eight_are_named():
    changes = {f"path.{i}": str(i) if i == 3 else f"{i} instead of 9" for i in range(11)}
    text = describe_changes(changes, told=["path.0"])
    assert "path.1 1 instead of 9, path.2 2 instead of 9, path.3 3, path.4 4 instead of 9" in text
    assert text.endswith("path.8 8 instead of 9 and 2 others.")
    assert describe_changes(dict(list(changes.items())[:9]), told=["path.0"]).endswith("and path.8 8 instead of 9.")


def test_each_size_has_the_values_of_its_own_full_setting(load):
    tree = {**CHANGED, "sizes": {"9m": {"model": "llama-9m", "trainer.batch_size": 64}, "71m": None}}
    changed = [load({"trainer.batch_size": 8}, tree=tree, size=size).scale.changed for size in ("9m", "71m")]
    assert [one["trainer.batch_size"] for one in changed] == ["8 instead of 64", "8 instead of 512"]
