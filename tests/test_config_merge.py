"""Merging: names that stand for kinds, overrides over files and instances, and what a new kind keeps."""

import itertools

import pytest

from ablate.config.merging import merge
from ablate.config.yaml import parse_overrides
from ablate.experiment.trainer import TrainerConfig
from ablate.experiment.tree import Experiment
from ablate.models.llama import Llama
from ablate.norms.by_depth import Mix
from ablate.norms.layers import LayerNorm, RMSNorm
from ablate.norms.placements import DeepNorm, Post
from ablate.optim.optimizers import Adam

load = Experiment.from_mapping


def test_a_name_stands_for_the_kind():
    experiment = load({"model": "llama-71m", "norm": "post", "norm.layer": "layernorm", "optimizer": "adam"})
    assert experiment.norm == Post(layer=LayerNorm())
    assert experiment.optimizer == Adam()
    assert (experiment.model.hidden, experiment.model.mlp, experiment.model.layers) == (512, 1368, 12)


@pytest.mark.parametrize(
    "words",
    itertools.permutations(["norm=mix", "norm.alpha=0.5", "norm.first=deepnorm", "norm.layer=layernorm"]),
    ids=" ".join,
)
def test_the_order_of_words_does_not_matter(words):
    assert load(parse_overrides(words)).norm == Mix(alpha=0.5, first=DeepNorm(), layer=LayerNorm())


@pytest.mark.parametrize("words", itertools.permutations(["model=llama-9m", "model.hidden=64", "model.kv_heads=2"]))
def test_fields_go_over_a_named_size_in_any_order(words):
    model = load(parse_overrides(words)).model
    assert (model.hidden, model.mlp, model.kv_heads) == (64, 352, 2)


def test_later_mappings_win():
    assert load({"seed": 1}, {"seed": 2}, {"seed": 3}).seed == 3
    assert load({"optimizer.lr": 1e-2}, {"optimizer": {"weight_decay": 0.5}}).optimizer.lr == 1e-2
    assert load({"norm": {"kind": "mix", "alpha": 0.5}}, {"norm.layer": "layernorm"}).norm.alpha == 0.5
    assert load({"norm": "mix"}, {"norm.kind": "post"}) == load({"norm.kind": "mix"}, {"norm": "post"})


def test_a_new_kind_drops_the_fields_of_the_old_and_keeps_the_shared():
    base = {"norm": {"kind": "mix", "alpha": 0.5, "layer": {"kind": "layernorm", "bias": False}, "final_norm": False}}
    for override in ({"norm": "post"}, {"norm.kind": "post"}, {"norm": {"kind": "post"}}):
        assert load(base, override).norm == Post(layer=LayerNorm(bias=False), final_norm=False)
    assert load(base, {"norm": "mix"}).norm == load(base).norm
    other = load(base, {"norm.layer": "rmsnorm"}).norm
    assert (other.alpha, other.layer) == (0.5, RMSNorm())
    schedule = {"schedule": {"kind": "cosine", "warmup_steps": 5, "final_fraction": 0.5}}
    assert load(schedule, {"schedule": "constant"}).schedule.warmup_steps == 5
    optimizer = {"optimizer": {"kind": "adamw", "lr": 0.5}}
    assert load(optimizer, {"optimizer": "adam"}).optimizer == Adam(lr=0.5)
    assert load(optimizer, {"optimizer": "adam"}).optimizer.betas == (0.9, 0.999)


def test_merge_leaves_its_arguments_alone():
    base, update = {"norm": {"kind": "mix", "alpha": 0.5}}, {"norm": {"kind": "post"}}
    merged = merge(Experiment, base, update)
    assert merged == {"norm": {"kind": "post"}}
    assert base == {"norm": {"kind": "mix", "alpha": 0.5}}
    assert update == {"norm": {"kind": "post"}}


@pytest.mark.parametrize(
    ("given", "override", "expected"),
    [
        ({"norm": Mix(alpha=0.5)}, {"norm.layer": "layernorm"}, {"norm": Mix(alpha=0.5, layer=LayerNorm())}),
        (
            {"trainer": TrainerConfig(max_steps=9, batch_size=4)},
            {"trainer.max_steps": 50},
            {"trainer": {"max_steps": 50, "batch_size": 4}},
        ),
        ({"model": Llama(hidden=64)}, {"model.layers": 2}, {"model": {"kind": "llama", "hidden": 64, "layers": 2}}),
        ({"norm": Mix(alpha=0.5)}, {"norm": "post"}, {"norm": Post()}),
        (
            {"norm": {"kind": "mix", "alpha": 0.5}},
            {"norm.layer": LayerNorm()},
            {"norm": Mix(alpha=0.5, layer=LayerNorm())},
        ),
    ],
)
def test_overrides_go_over_instances(given, override, expected):
    assert load(given, override) == load(expected)
