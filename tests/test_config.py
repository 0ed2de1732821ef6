"""`Experiment`: reading, merging, defaults, errors, and the JSON schema."""

import itertools
import re

import pytest
import yaml
from pydantic import ValidationError

from ablate.config import Experiment, json_schema, merge, parse_overrides, parse_yaml
from ablate.data import data_kinds
from ablate.errors import AblateError, ConfigError
from ablate.models import models
from ablate.models.llama import Llama
from ablate.models.vit import ViT
from ablate.norms import initializations, norm_layers, placements
from ablate.norms.layers import LayerNorm, RMSNorm
from ablate.norms.placements import DeepNorm, Mix, Post, Pre
from ablate.registry import Registry
from ablate.training.optim import Adam, optimizers, schedules
from ablate.training.trainer import TrainerConfig

PARTS = {
    "model": models,
    "norm": placements,
    "norm.layer": norm_layers,
    "init": initializations,
    "data": data_kinds,
    "optimizer": optimizers,
    "schedule": schedules,
}


def load(*mappings):
    return Experiment.from_mapping(*mappings)


def problems(*mappings):
    """{path: (message, given)} of everything that is wrong."""
    with pytest.raises(ConfigError) as caught:
        load(*mappings)
    found = {p.path: (p.message, p.given) for p in caught.value.problems}
    assert len(found) == len(caught.value.problems)
    return found


def some_of_each():
    """An experiment for every name that any part accepts."""
    for part, registry in PARTS.items():
        for name in registry.names:
            kind = registry.expand(name)["kind"]
            family = {"model": "vit"} if getattr(registry[kind], "task", "") == "image_classification" else {}
            needed = {f"{part}.{f}": "x" for f, i in registry[kind].model_fields.items() if i.is_required()}
            settings = {**(family if part == "data" else {}), part: name}
            if part != "model":
                settings |= needed
            yield pytest.param(settings, id=f"{part}={name}")


EVERYTHING = [
    *some_of_each(),
    {"norm": "mix", "norm.alpha": 0.5, "norm.first": "deepnorm", "norm.second": "lns", "norm.final_norm": False},
    {"norm": "mix", "norm.first_layers": 2},
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


# ---------------------------------------------------------------------------------------------------- values in YAML


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        ("-2.5e+4", -25000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("12", 12),
        ("1_000", 1000),
        ("0.25", 0.25),
        ("true", True),
        ("null", None),
        ("", None),
        ("1e", "1e"),
        ("e5", "e5"),
        ("llama-71m", "llama-71m"),
        ("1.2.3", "1.2.3"),
        ("1:30.5", "1:30.5"),  # PyYAML's own rule makes 90.5 of it
        ("[1e-3, a]", [0.001, "a"]),
        ("{low: 1e-4}", {"low": 0.0001}),
        ("'1e-3'", "1e-3"),
    ],
)
def test_numbers(text, value):
    found = parse_yaml(text, "text")
    assert found == value
    assert type(found) is type(value)


def test_overrides_from_the_command_line():
    words = ["model=llama-9m", "norm=mix", "norm.alpha=0.5", "optimizer.lr=1e-3", "trainer.compile=false", "seed=3"]
    found = parse_overrides(words)
    assert found == {
        "model": "llama-9m",
        "norm": "mix",
        "norm.alpha": 0.5,
        "optimizer.lr": 0.001,
        "trainer.compile": False,
        "seed": 3,
    }
    assert list(parse_overrides(["norm={kind: mix, alpha: 1e-1}"]).values()) == [{"kind": "mix", "alpha": 0.1}]
    assert parse_overrides(["data.root=a=b"]) == {"data.root": "a=b"}


@pytest.mark.parametrize("word", ["norm", "=3", "--norm"])
def test_a_word_that_is_no_override(word):
    with pytest.raises(ConfigError, match="expected key=value, given"):
        parse_overrides([word])


def test_a_value_that_is_no_yaml():
    with pytest.raises(ConfigError, match="1 problem in norm=:"):
        parse_overrides(["norm=[1"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"norm: [1\n", "line 2"),
        (b"- a\n", "expected key: value lines, found list"),
        (b"5\n", "expected key: value lines, found int"),
        (b"norm: \xff\n", "cannot be read"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path, content, message):
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        Experiment.load(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_names_one_that_is_there(tmp_path):
    (tmp_path / "baseline.yaml").touch()
    with pytest.raises(ConfigError, match=r"there is no file .*base_line\.yaml\. Did you mean baseline\.yaml\?"):
        Experiment.load(tmp_path / "base_line.yaml")
    with pytest.raises(ConfigError, match=r"there is no file"):
        Experiment.load(tmp_path / "nowhere" / "base.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        Experiment.load(tmp_path)


# ---------------------------------------------------------------------------------------------------- merging


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


def test_frozen():
    experiment = Experiment()
    for part, field in [(experiment, "seed"), (experiment.norm, "final_norm"), (experiment.trainer, "max_steps")]:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(part, field, 1)


@pytest.mark.parametrize(
    ("max_steps", "given", "expected"),
    [(300, None, 50), (7, None, 2), (1, None, 1), (300, 40, 40), (10, 40, 10), (6, None, 1)],
)
def test_validation_interval(max_steps, given, expected):
    assert TrainerConfig(max_steps=max_steps, val_check_interval=given).validation_interval == expected


# ---------------------------------------------------------------------------------------------------- errors


def test_all_problems_at_once():
    found = problems(
        {
            "model": {"kind": "llama", "hiden": 3, "layers": 0},
            "norm": {"kind": "mix", "alpha": 1.5},
            "data": "topic",
            "optimizer": {"lr": "fast", "lrr": 2},
            "schedule.kind": "cosin",
            "trainer": {"max_stepz": 3, "precision": "fp8"},
            "modle": "x",
            "seed": -1,
        }
    )
    assert found == {
        "model.hiden": ("unknown key. Did you mean model.hidden?", 3),
        "model.layers": ("must be greater than 0", 0),
        "norm.alpha": ("must be less than or equal to 1", 1.5),
        "data.kind": (f"unknown data 'topic'. Accepted: {', '.join(data_kinds.names)}. Did you mean topics?", None),
        "optimizer.lr": ("must be a valid number, unable to parse string as a number", "fast"),
        "optimizer.lrr": ("unknown key. Did you mean optimizer.lr?", 2),
        "schedule.kind": ("unknown schedule 'cosin'. Accepted: cosine, constant. Did you mean cosine?", None),
        "trainer.max_stepz": ("unknown key. Did you mean trainer.max_steps?", 3),
        "trainer.precision": ("must be 'auto', '32-true' or 'bf16-mixed'", "fp8"),
        "modle": ("unknown key. Did you mean model?", "x"),
        "seed": ("must be greater than or equal to 0", -1),
    }


def test_the_message_for_a_person(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("norm: {kind: mix, alpha: 1.5}\nsede: 3\n")
    with pytest.raises(AblateError) as caught:
        Experiment.load(file)
    assert str(caught.value).splitlines() == [
        f"2 problems in {file}:",
        "  norm.alpha: must be less than or equal to 1 (given: 1.5)",
        "  sede: unknown key. Did you mean seed? (given: 3)",
    ]
    with pytest.raises(ConfigError, match=r"^1 problem in the configuration:\n  seed: "):
        load({"seed": -1})


@pytest.mark.parametrize(
    ("settings", "path", "message"),
    [
        ({"norm": "mxi"}, "norm.kind", "unknown placement 'mxi'. Accepted: pre, .*Did you mean mix?"),
        ({"norm.layer": "rms"}, "norm.layer.kind", "unknown norm layer 'rms'. Accepted: rmsnorm, .*mean rmsnorm?"),
        ({"model": "llama-71"}, "model.kind", "unknown model 'llama-71'. .*llama-71m.* Did you mean llama-71m?"),
        ({"norm": {"kind": "mix", "first": "pots"}}, "norm.first.kind", "unknown placement 'pots'. .*mean post?"),
        ({"norm": 3}, "norm", "expected the name of a placement or a mapping"),
        ({"norm": None}, "norm", "expected the name of a placement or a mapping"),
        ({"norm": ["pre"]}, "norm", "expected the name of a placement or a mapping"),
        ({"trainer": 5}, "trainer", "must be a valid dictionary.*"),
        ({"trainer.max_steps": "many"}, "trainer.max_steps", "must be a valid integer, .*"),
        ({"trainer.max_steps": 1.5}, "trainer.max_steps", "must be a valid integer, .*fractional part"),
        ({"trainer.max_steps": [1]}, "trainer.max_steps", "must be a valid integer"),
        ({"trainer.max_steps": {"a": 1}}, "trainer.max_steps", "must be a valid integer"),
        ({"optimizer.lr": float("nan")}, "optimizer.lr", "must be .*"),
        ({"optimizer.betas": 0.9}, "optimizer.betas", "must be a valid tuple"),
        ({"optimizer.betas": [0.9, 1.5]}, "optimizer.betas.1", "must be less than 1"),
        ({"norm.final_norm": 7}, "norm.final_norm", "must be a valid boolean.*"),
        ({"norm.alpha": 0.5}, "norm.alpha", "unknown key. It belongs to norm.kind mix."),
        ({"schedule": "constant", "schedule.final_fraction": 0}, "schedule.final_fraction", ".*schedule.kind cosine."),
        ({"model": "vit", "model.rope_base": 5}, "model.rope_base", "unknown key. It belongs to model.kind llama."),
        ({"lr": 1e-3}, "lr", "unknown key. Did you mean optimizer.lr?"),
        ({"trainer.seed": 1}, "trainer.seed", "unknown key. Did you mean seed?"),
        ({"zzz": 1}, "zzz", "unknown key. Accepted: model, norm, .*"),
        ({1: 2}, "1", "unknown key. .*"),
        ({"data": {"kind": "image_folder"}, "model": "vit"}, "data.root", "is required"),
    ],
)
def test_one_problem(settings, path, message):
    found = problems(settings)
    assert list(found) == [path]
    assert re.fullmatch(message.replace("?", r"\?"), found[path][0]), found[path][0]


@pytest.mark.parametrize("alpha", [1.5, -0.1, float("inf"), "a quarter"])
def test_alpha_outside(alpha):
    ((message, given),) = problems({"norm": "mix", "norm.alpha": alpha}).values()
    assert message.startswith("must be ")
    assert given == alpha


def test_parts_that_do_not_fit_together_are_reported_together():
    found = problems(
        {
            "model": {"kind": "vit", "heads": 5},
            "norm": {"kind": "mix", "first_layers": 7},
            "data": "topics",
            "schedule.warmup_steps": 300,
            "trainer.accumulate": 3,
        }
    )
    fitting = ", ".join(kind for kind in data_kinds if data_kinds[kind].task == "image_classification")
    assert found == {
        "model.heads": ("must divide hidden (48)", 5),
        "norm.first_layers": ("the model has 6 layers", 7),
        "data.kind": (
            f"topics is for language modeling, model vit is for image classification. Accepted: {fitting}",
            "topics",
        ),
        "schedule.warmup_steps": ("the warm-up (300) must be below trainer.max_steps (300)", 300),
        "trainer.accumulate": ("must divide trainer.batch_size (16)", 3),
    }


@pytest.mark.parametrize(
    ("settings", "path", "given"),
    [
        ({"model.heads": 3}, "model.heads", 3),
        ({"model.hidden": 60, "model.heads": 4}, "model.heads", 4),
        ({"model.kv_heads": 3}, "model.kv_heads", 3),
        ({"model": "vit", "data": "topics"}, "data.kind", "topics"),
        ({"model": "llama", "data": "digits"}, "data.kind", "digits"),
        ({"schedule.warmup_steps": 400}, "schedule.warmup_steps", 400),
        ({"trainer.max_steps": 3, "schedule.warmup_fraction": 0.9}, "schedule.warmup_fraction", 0.9),
        ({"norm": {"kind": "mix", "first": {"kind": "mix", "first_layers": 9}}}, "norm.first.first_layers", 9),
    ],
)
def test_parts_that_do_not_fit(settings, path, given):
    found = problems(settings)
    assert {p: g for p, (_, g) in found.items()} == {path: given}
    with pytest.raises(ValidationError, match=path.rpartition(".")[2]):
        Experiment(**merge(Experiment, {}, settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule.warmup_steps": 299},
        {"trainer.accumulate": 16},
        {"norm": {"kind": "mix", "first_layers": 6}},
        {"model.kv_heads": 4},
        {"trainer.max_steps": 1},
    ],
)
def test_limits_themselves_are_accepted(settings):
    load(settings)


def test_mix_takes_alpha_or_a_count():
    assert problems({"norm": {"kind": "mix", "alpha": 0.5, "first_layers": 2}}) == {
        "norm": ("give either alpha or first_layers, not both", None)
    }
    both = load({"norm": {"kind": "mix", "alpha": 0.5}}, {"norm.alpha": None, "norm.first_layers": 2}).norm
    assert (both.alpha, both.first_layers) == (None, 2)


@pytest.mark.parametrize("field", ["layer", "final_norm"])
@pytest.mark.parametrize("part", ["first", "second"])
def test_what_a_mix_shares_is_set_on_the_mix(part, field):
    value = "layernorm" if field == "layer" else False
    found = problems({"norm": "mix", f"norm.{part}.{field}": value})
    assert found == {"norm": (f"set {field} on norm itself, not on first or second", None)}


# ---------------------------------------------------------------------------------------------------- JSON schema


def accepts(schema, value, root):
    """Whether `value` is valid: as much of JSON Schema as ours use, and an error for anything more."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return accepts(root["$defs"][name], value, root)
    known = {
        *("type", "enum", "const", "anyOf", "properties", "additionalProperties", "required", "items", "prefixItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems", "minLength"),
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
    return json_schema()


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
        assert names["enum"] == registry.names
        assert [kind["properties"]["kind"]["const"] for kind in kinds] == list(registry)
        for kind in kinds:
            assert kind["description"]
            assert kind["additionalProperties"] is False
            for name, field in kind["properties"].items():
                assert name == "kind" or field.get("description"), (kind["title"], name)
    for name, field in schema["properties"].items():
        assert field.get("description"), name
