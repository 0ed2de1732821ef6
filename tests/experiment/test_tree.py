"""`Experiment`: round trips, defaults, and the JSON schema."""

import re

import pytest
import yaml

from ablate.config.building import json_schema
from ablate.config.errors import ConfigError
from ablate.config.registry import Registry
from ablate.config.yaml import parse_yaml
from ablate.data import data_kinds
from ablate.experiment.tree import Experiment
from ablate.models import models
from ablate.models.llama import Llama
from ablate.models.vit import ViT
from ablate.norms import initializations, norm_layers, placements
from ablate.norms.layers import LayerNorm, RMSNorm
from ablate.norms.mix import Mix
from ablate.norms.placements import DeepNorm, Pre
from ablate.optim.optimizers import optimizers
from ablate.optim.schedules import schedules

PARTS = {
    "model": models,
    "norm": placements,
    "norm.layer": norm_layers,
    "init": initializations,
    "data": data_kinds,
    "optimizer": optimizers,
    "schedule": schedules,
}
load = Experiment.from_mapping


def some_of_each():
    """An experiment for every name that any part accepts."""
    for part, registry in PARTS.items():
        for name in registry.names:
            preset = registry.expand(name)
            kind = preset["kind"]
            vision = name == "batchnorm" or getattr(registry[kind], "task", "").startswith("image_")
            family = {"model": "vit"} if vision else {}
            fields = registry[kind].model_fields.items()
            needed = {f"{part}.{f}": "x" for f, info in fields if info.is_required() and f not in preset}
            needed |= {"optimizer.name": {"torch": "SGD", "timm": "lion"}[kind]} if "optimizer.name" in needed else {}
            needed |= {"data.files": "x"} if name in ("text", "instructions", "preferences") else {}
            needed |= {"data.mask_classes": 3} if name == "mask_folder" else {}
            settings = {**(family if part != "model" else {}), part: name}
            if part != "model":
                settings |= needed
            elif registry[kind].of_library:  # which has no default size
                settings = {part: {"kind": name, **registry[kind].example}}
            yield pytest.param(settings, id=f"{part}={name}")


EVERYTHING = [
    *some_of_each(),
    {"norm": "mix", "norm.alpha": 0.5, "norm.first": "deepnorm", "norm.second": "lns", "norm.final_norm": False},
    {"norm": "mix", "norm.first_layers": 2},
    {
        "data": "preferences",
        "data.files": "a.json",
        "warm_start": {"from": "x", "copy": "all"},
        "align": {"method": "rloo", "reward": "y", "beta": 0.1, "length": 9},
    },
    {"norm": {"kind": "by_depth", "ranges": {"a": {"until": 0.5, "placement": "lns"}, "b": {"placement": "mix"}}}},
    {"model": "vit-tiny", "norm": "mix", "norm.layer": {"kind": "layernorm", "bias": False, "eps": 1e-12}},
    {"trainer": {"gradient_clip_val": 1, "precision": "bf16-mixed", "compile": True, "val_check_interval": 7}},
    {"model": {"kv_heads": 2, "vocab_size": 99, "rope_base": 5e5}, "optimizer": {"betas": [0.5, 0.6], "lr": 1e-30}},
]


# ---------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("settings", EVERYTHING)
def test_round_trip(settings):
    experiment = load(settings)
    assert load(experiment.to_tree()) == experiment
    assert load(parse_yaml(experiment.to_yaml(), "text")) == experiment
    assert load(yaml.safe_load(experiment.to_yaml())) == experiment
    assert load(experiment.flat()) == experiment
    assert Experiment(**dict(experiment)) == experiment
    assert Experiment.model_validate(experiment.to_tree()) == experiment
    assert load(experiment.to_tree()).to_yaml() == experiment.to_yaml()


def test_a_file_and_its_overrides(tmp_path):
    file = tmp_path / "base.yaml"
    file.write_text("norm: {kind: mix, alpha: 0.5}\noptimizer:\n  lr: 3e-4\nseed: 4\n")
    experiment = Experiment.load(file, {"norm.alpha": 0.25, "trainer.max_steps": 20})
    assert experiment == load({"norm": Mix(alpha=0.25), "optimizer.lr": 3e-4, "seed": 4, "trainer.max_steps": 20})
    file.write_text(experiment.to_yaml())
    assert Experiment.load(str(file)) == experiment
    file.write_text("")
    assert Experiment.load(file) == Experiment() == Experiment.load()


def test_flat_has_every_leaf():
    flat = load({"norm": "mix"}).flat()
    assert flat["norm.first.kind"] == "post"
    assert flat["norm.layer.kind"] == "rmsnorm"
    assert flat["trainer.gradient_clip_val"] is None
    assert not any(isinstance(value, dict) for value in flat.values())


# ---------------------------------------------------------------------------------------------------- defaults


@pytest.mark.parametrize("build", [Experiment.from_mapping, lambda tree: Experiment(**tree)])
@pytest.mark.parametrize(
    ("model", "data", "layer"),
    [
        (None, "topics", RMSNorm),
        ("llama", "topics", RMSNorm),
        ("llama-9m", "topics", RMSNorm),
        ({"hidden": 64}, "topics", RMSNorm),
        (Llama(), "topics", RMSNorm),
        ("vit", "digits", LayerNorm),
        ("vit-tiny", "digits", LayerNorm),
        ({"kind": "vit", "hidden": 96}, "digits", LayerNorm),
        (ViT(hidden=96), "digits", LayerNorm),
    ],
)
@pytest.mark.parametrize("norm", [None, "mix", {"kind": "post"}, Pre(), Mix(alpha=0.5), Pre(final_norm=False)])
def test_the_family_brings_data_and_norm_layer(build, model, data, layer, norm):
    tree = {key: value for key, value in (("model", model), ("norm", norm)) if value is not None}
    experiment = build(tree)
    assert experiment.data.kind == data
    assert type(experiment.norm.layer) is layer


def test_what_is_given_goes_before_the_familys_defaults():
    assert load({"model": "vit", "norm.layer": "rmsnorm"}).norm.layer == RMSNorm()
    assert Experiment(model=ViT(), norm=Pre(layer=RMSNorm())).norm.layer == RMSNorm()
    assert Experiment(norm=Pre(layer=LayerNorm(bias=False))).norm.layer == LayerNorm(bias=False)
    assert load({"model": "vit", "norm.layer.eps": 1e-3}).norm.layer == LayerNorm(eps=1e-3)
    assert Experiment.model_validate({"model.kind": "vit"}).data.kind == "digits"


def test_the_defaults_of_mix_hold_in_both_families():
    norm = Experiment(model="vit-tiny", norm=Mix(first=DeepNorm())).norm
    assert (norm.alpha, norm.first.kind, norm.second.kind, norm.layer) == (0.25, "deepnorm", "pre", LayerNorm())


# ---------------------------------------------------------------------------------------------------- JSON schema


def accepts(schema, value, root):
    """Whether `value` is valid: as much of JSON Schema as ours use, and an error for anything more."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return accepts(root["$defs"][name], value, root)
    known = {
        *("type", "enum", "const", "anyOf", "properties", "additionalProperties", "required", "items", "prefixItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems", "minLength", "pattern"),
        *("title", "description", "default", "$defs", "format"),
    }
    assert set(schema) <= known, set(schema) - known
    number = isinstance(value, int | float) and not isinstance(value, bool)
    types = {
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "null": value is None,
        "number": number,
        "integer": number and value == int(value),
    }
    if "type" in schema and not types[schema["type"]]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "anyOf" in schema and not any(accepts(s, value, root) for s in schema["anyOf"]):
        return False
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return False
    if isinstance(value, dict):
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        for key, item in value.items():
            inner = properties.get(key, rest)
            if not (accepts(inner, item, root) if isinstance(inner, dict) else inner):
                return False
        return set(schema.get("required", [])) <= set(value)
    if isinstance(value, list):
        prefix = schema.get("prefixItems", [])
        inner = [*prefix, *[schema.get("items", {})] * (len(value) - len(prefix))]
        fits = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        return fits and all(accepts(s, item, root) for s, item in zip(inner, value, strict=False))
    if number:
        return (
            schema.get("minimum", value) <= value <= schema.get("maximum", value)
            and (value > schema["exclusiveMinimum"] if "exclusiveMinimum" in schema else True)
            and (value < schema["exclusiveMaximum"] if "exclusiveMaximum" in schema else True)
        )
    return True


@pytest.fixture(scope="module")
def schema():
    return json_schema(Experiment)


@pytest.mark.parametrize("settings", EVERYTHING)
def test_the_schema_accepts_what_a_run_stores(schema, settings):
    assert accepts(schema, load(settings).to_tree(), schema)


@pytest.mark.parametrize(
    ("tree", "valid"),
    [
        ({}, True),
        ({"model": "llama-71m", "norm": "mix"}, True),
        ({"norm": {"kind": "mix", "alpha": 0.5, "layer": "rmsnorm", "first": "deepnorm"}}, True),
        ({"optimizer": {"lr": 1}}, True),
        ({"norm": {"kind": "mix", "alpha": 1.5}}, False),
        ({"norm": {"kind": "pre", "alpha": 0.5}}, False),
        ({"norm": "mxi"}, False),
        ({"norm": {"kind": "mix", "first": "mxi"}}, False),
        ({"norm": {"layer": "rms"}}, False),
        ({"sede": 1}, False),
        ({"seed": -1}, False),
        ({"trainer": {"max_steps": 1.5}}, False),
        ({"trainer": {"precision": "fp8"}}, False),
        ({"optimizer": {"betas": [0.9]}}, False),
        ({"optimizer": {"betas": [0.9, 1.5]}}, False),
    ],
)
def test_the_schema_judges_as_we_do(schema, tree, valid):
    assert accepts(schema, tree, schema) == valid
    try:
        load(tree)
    except ConfigError:
        assert not valid
    else:
        assert valid


BY_NAME = {  # kinds whose library has its own keys
    "optimizer": ("torch", "timm"),
    "model": ("hf", "timm"),
}


def references(schema):
    if isinstance(schema, dict):
        yield from ([schema["$ref"]] if "$ref" in schema else [])
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


def test_the_schema_has_every_registry_with_descriptions(schema):
    assert all(ref.removeprefix("#/$defs/") in schema["$defs"] for ref in references(schema))
    assert {f"#/$defs/{registry.slug}" for registry in PARTS.values()} <= set(references(schema))
    for registry in Registry.all.values():
        names, *kinds = schema["$defs"][registry.slug]["anyOf"]
        assert names == {"type": "string", **({} if registry.look_up else {"enum": registry.accepted})}
        constants = [kind["properties"]["kind"]["const"] for kind in kinds]
        assert [constant for constant in constants if registry[constant].listed] == [*registry]
        for kind in kinds:
            assert kind["description"]
            by_name = kind["properties"]["kind"]["const"] in BY_NAME.get(registry.name, ())
            assert kind["additionalProperties"] is by_name
            for name, field in kind["properties"].items():
                assert name == "kind" or field.get("description"), (kind["title"], name)
    for name, field in schema["properties"].items():
        assert field.get("description"), name


SMALL = {"data": {"kind": "topics", "seq_len": 50}, "trainer.batch_size": 4}  # 200 tokens an update


@pytest.mark.parametrize(("tokens", "steps"), [(200, 1), (399, 1), (400, 2), (10_100, 50)])
def test_max_tokens_are_whole_updates_that_have_no_more(tokens, steps):
    made = load(SMALL, {"trainer.max_tokens": tokens})
    assert (made.trainer.max_steps, made.items) == (steps, steps * 200)
    assert load(made.to_tree()) == made == load(made.to_tree(), {"trainer.max_tokens": tokens})
    assert made.shorten(1).trainer.max_tokens is None
    again = load(SMALL, {"trainer.max_steps": 7}, {"trainer.max_tokens": tokens})
    assert again == made
    assert load(SMALL, {"trainer.max_tokens": tokens}, {"trainer.max_steps": 7}).trainer.max_tokens is None
    assert load(SMALL, {"trainer.max_tokens": 400, "data.seq_len": 25}).trainer.max_steps == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**SMALL, "trainer.max_tokens": 199}, "must be at least the 200 tokens of an update"),
        ({**SMALL, "trainer.max_tokens": 199, "trainer.max_steps": 3}, "is 0 updates, and trainer.max_steps=3"),
        ({**SMALL, "trainer.max_tokens": 10**12}, "more than 1,000,000,000 times the 200 tokens"),
        ({**SMALL, "trainer.max_tokens": 400, "trainer.max_steps": 300}, "is 2 updates, and trainer.max_steps=300"),
        ({"model": "vit", "trainer.max_tokens": 400}, "counts tokens, and vit is trained on images here: set"),
        ({**SMALL, "trainer.max_tokens": 0}, "greater than 0"),
    ],
)  # fmt: skip
def test_max_tokens_that_are_refused(settings, message):
    with pytest.raises(ConfigError) as info:
        load(settings)
    assert [problem.path for problem in info.value.problems] == ["trainer.max_tokens"]
    assert message in str(info.value)
