"""Merging: names that stand for kinds, overrides over files and instances, and what a new kind keeps."""

import itertools

import pytest

from ablate.config.errors import ConfigError
from ablate.config.merging import merge
from ablate.config.yaml import parse_overrides
from ablate.data.text.config import ExtraText
from ablate.experiment.trainer import TrainerConfig
from ablate.experiment.tree import Experiment
from ablate.models.llama import Llama
from ablate.norms.layers import LayerNorm, RMSNorm
from ablate.norms.mix import Mix
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


C4 = {"data": "c4"}
ALPACA = {"kind": "instructions", "dataset": "tatsu-lab/alpaca", "val_split": "test"}


@pytest.mark.parametrize(
    ("layers", "data"),
    [
        ([C4, {"data.files": "a"}], {"files": ("a",), "dataset": None, "subset": None, "val_split": None}),
        ([C4, {"data": {"files": "a"}}], {"files": ("a",), "dataset": None}),
        ([{"data": "c4", "data.files": "a"}], {"files": ("a",), "dataset": None}),
        ([{"data": {"kind": "text", "files": "a"}}, C4], {"files": (), "dataset": "allenai/c4", "subset": "en"}),
        ([C4, {"data.files": "a", "data.val_files": "b"}], {"val_files": ("b",), "val_split": None}),
        (
            [C4, {"data.val_files": "b"}],
            {"dataset": "allenai/c4", "subset": "en", "val_files": ("b",), "val_split": None},
        ),
        ([C4, {"data.files": "a"}, {"data.dataset": "b"}], {"files": (), "dataset": "b", "subset": None}),
        ([C4, {"data.dataset": "b"}], {"dataset": "b", "subset": "en", "val_split": "validation"}),
        ([C4, {"data.files": []}], {"files": (), "dataset": "allenai/c4", "subset": "en"}),
        ([{"data": ALPACA}, {"data.files": "a"}], {"files": ("a",), "dataset": None, "val_split": None}),
    ],
)
def test_files_take_the_place_of_a_dataset_below_and_the_other_way_round(layers, data):
    loaded = load(*layers).data
    assert {field: getattr(loaded, field) for field in data} == data
    if "c4" in str(layers[0]["data"]):
        assert (loaded.tokenizer, loaded.layout, loaded.seq_len) == ("t5-base", "documents", 256)


def test_files_and_a_dataset_in_one_layer_are_refused():
    with pytest.raises(ConfigError, match="needs either files or dataset, and both are given"):
        load(C4, {"data.files": "a", "data.dataset": "b"})


WIKI = {"dataset": "wiki", "subset": "raw", "split": "test", "column": "page", "tokens": 300}
SETS = {"data": {"kind": "text", "files": "a", "val_sets": {"wiki": WIKI, "mine": {"files": "b"}}}}


@pytest.mark.parametrize(
    ("word", "sets"),
    [
        ("data.val_sets=null", {}),
        ("data.val_sets={}", {}),
        ("data.val_sets.wiki=null", {"mine": {"files": ("b",)}}),
        ("data.val_sets={wiki: null}", {"mine": {"files": ("b",)}}),
        (
            "data.val_sets.wiki.files=c",
            {"wiki": {"files": ("c",), "column": "page", "tokens": 300}, "mine": {"files": ("b",)}},
        ),
        (
            "data.val_sets={mine: {dataset: c}}",
            {"wiki": WIKI, "mine": {"dataset": "c"}},
        ),
    ],
)
def test_validation_sets_are_replaced_and_removed(word, sets):
    loaded = load(SETS, parse_overrides([word])).data.val_sets
    assert loaded == {name: ExtraText(**fields) for name, fields in sets.items()}
    arm = merge(Experiment, {}, parse_overrides([word]))  # as the settings of an arm, which are merged twice
    assert load(SETS, arm).data.val_sets == loaded


def test_sets_are_removed_before_others_are_added():
    words = parse_overrides(["data.val_sets.new.files=c", "data.val_sets=null"])
    assert load(SETS, words).data.val_sets == {"new": ExtraText(files=("c",))}


def test_a_set_that_is_not_there_is_not_removed_silently():
    with pytest.raises(ConfigError, match=r"there is no validation set wikki to remove. Validation sets: wiki, mine"):
        load(SETS, {"data.val_sets.wikki": None})
