"""What is said about a wrong configuration: all of it at once, each with its path, in a person's words."""

import re
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from ablate.config.base import Config
from ablate.config.building import build
from ablate.config.errors import AblateError, ConfigError
from ablate.config.merging import merge
from ablate.data import data_kinds
from ablate.experiment.tree import Experiment
from ablate.sweeps.spec.sweep import Sweep

load = Experiment.from_mapping


def problems(*mappings):
    """{path: (message, given)} of everything that is wrong."""
    with pytest.raises(ConfigError) as caught:
        load(*mappings)
    found = {p.path: (p.message, p.given) for p in caught.value.problems}
    assert len(found) == len(caught.value.problems)
    return found


def test_all_problems_at_once():
    found = problems(
        {
            "model": {"kind": "llama", "hiden": 3, "layers": -1},
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
        "model.layers": ("must be greater than or equal to 0", -1),
        "norm.alpha": ("must be less than or equal to 1", 1.5),
        "data.kind": (f"unknown data 'topic'. Accepted: {', '.join(data_kinds.names)}. Did you mean topics?", None),
        "optimizer.lr": ("must be a number", "fast"),
        "optimizer.lrr": ("unknown key. Did you mean optimizer.lr?", 2),
        "schedule.kind": (
            "unknown schedule 'cosin'. Accepted: cosine, linear, constant, wsd, power, 1-sqrt. Did you mean cosine?",
            None,
        ),
        "trainer.max_stepz": ("unknown key. Did you mean trainer.max_steps?", 3),
        "trainer.precision": ("must be 'auto', '32-true', 'bf16-mixed' or 'bf16-true'", "fp8"),
        "modle": ("unknown key. Did you mean model?", "x"),
        "seed": ("must be greater than or equal to 0", -1),
    }


def test_a_key_is_not_answered_with_the_part_that_it_is_in():
    ranges = {"a": {"until": 0.5, "norm": "hc"}, "b": {"placement": "pre"}}
    found = problems({"norm": {"kind": "by_depth", "ranges": ranges}})
    assert found["norm.ranges.a.placement"] == ("is required", None)
    assert "norm?" not in found["norm.ranges.a.norm"][0]


def test_what_is_beyond_sense_is_refused_at_once():
    """Each of these would run for ever, end in a traceback or abort the process."""
    many = 10**9
    found = problems(
        {
            "model": {"hidden": many, "layers": many, "mlp": many, "vocab_size": 4 * many},
            "seed": 2**32,
            "data": {"seq_len": many, "split_seed": 2**32},
            "trainer": {
                "max_steps": 2 * many,
                "batch_size": many,
                "accumulate": many,
                "devices": many,
                "num_workers": 513,
            },
            "lora": {"rank": many},
        }
    )
    assert "adapts a trained model" in found.pop("lora")[0]  # which is wrong as well
    assert found == {
        **{f"model.{width}": ("must be less than or equal to 1000000", many) for width in ("hidden", "mlp")},
        "model.layers": ("must be less than or equal to 2000", many),
        "model.vocab_size": ("must be less than or equal to 10000000", 4 * many),
        "seed": ("must be less than or equal to 4294967295", 2**32),
        "lora.rank": ("must be less than or equal to 1000000", many),
        "data.seq_len": ("must be less than or equal to 100000000", many),
        "data.split_seed": ("must be less than or equal to 4294967295", 2**32),
        "trainer.max_steps": ("must be less than or equal to 1000000000", 2 * many),
        "trainer.batch_size": ("must be less than or equal to 10000000", many),
        "trainer.accumulate": ("must be less than or equal to 10000000", many),
        "trainer.devices": ("must be less than or equal to 1000000 or 'auto'", many),
        "trainer.num_workers": ("must be less than or equal to 512 or 'auto'", 513),
    }
    found = problems({"model": {"kind": "vit", "hidden": many, "layers": many, "mlp_ratio": 1e300}})
    assert set(found) == {"model.hidden", "model.layers", "model.mlp_ratio"}
    (text, _) = problems({"model": {"hidden": 10**6, "mlp": 10**6, "heads": 10, "layers": 1000}})["model"]
    assert text == (
        "the layers would have 7,000,000,000,000,000 weights, 25,466 TiB in float32. "
        "Accepted: at most 10,000,000,000,000"
    )
    assert load({"seed": 2**32 - 1, "model.layers": 2_000, "norm": "mix"}).seed == 2**32 - 1


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
        ({"norm": "pre,mix"}, "norm.kind", r".*: arms: {pre: {norm: pre}, mix: {norm: mix}} in a file.*"),
        ({"norm.layer": "dyt, none"}, "norm.layer.kind", r".*: {dyt: {norm.layer: dyt}, none: {norm.layer: none}}.*"),
        ({"norm": "pre,mxi"}, "norm.kind", "unknown placement 'pre,mxi'. Accepted: pre, .*Did you mean pre?"),
        ({"optimizer.lr": "1e-3,3e-3"}, "optimizer.lr", r".* a sweep: search: {optimizer.lr: \[1e-3, 3e-3\]}.*"),
        (
            {"trainer.max_steps": [10, 20]},
            "trainer.max_steps",
            r"must be a whole number. To compare several values, write a sweep.*",
        ),
        ({"data.seqlen": 5}, "data.seqlen", "unknown key. Did you mean data.seq_len?"),
        ({"norm": "mxi"}, "norm.kind", "unknown placement 'mxi'. Accepted: pre, .*Did you mean mix?"),
        ({"norm.layer": "rms"}, "norm.layer.kind", "unknown norm layer 'rms'. Accepted: rmsnorm, .*mean rmsnorm?"),
        ({"model": "llama-71"}, "model.kind", "unknown model 'llama-71'. .*llama-71m.* Did you mean llama-71m?"),
        ({"norm": {"kind": "mix", "first": "pots"}}, "norm.first.kind", "unknown placement 'pots'. .*mean post?"),
        ({"norm": 3}, "norm", "expected the name of a placement or a mapping"),
        ({"norm": None}, "norm", "expected the name of a placement or a mapping"),
        ({"norm": ["pre"]}, "norm", "expected the name of a placement or a mapping"),
        ({"norm.alpha": 0.5}, "norm.alpha", "unknown key. It belongs to norm.kind mix."),
        (
            {"schedule": "constant", "schedule.final_fraction": 0},
            "schedule.final_fraction",
            ".*schedule.kind cosine, linear, wsd or power.",
        ),
        (
            {"model": "vit", "model.rope_base": 5},
            "model.rope_base",
            r"unknown key. It belongs to model.kind llama, .*\.",
        ),
        (
            {"model": "vit", "model.mlp": 64},
            "model.mlp",
            "unknown key. .*kind llama, .*Did you mean model.mlp_ratio?",
        ),
        ({"model": "vit", "model.drop": 0}, "model.drop", "unknown key. Did you mean model.drop_path?"),
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


FOLDER = {"model": "vit", "data": "image_folder"}
SEARCH = {"search": {"seed": [0, 1]}}
TEXT = "must be text, in quotes if it would be read as a number, true or false"


@pytest.mark.parametrize(
    ("settings", "path", "message"),
    [
        *[({"trainer.max_steps": v}, "trainer.max_steps", "must be a whole number") for v in ("100", 1.5, True, [1])],
        ({"trainer.max_steps": {"a": 1}}, "trainer.max_steps", "must be a whole number"),
        ({"seed": None}, "seed", "must be a whole number, not null"),
        ({"seed": False}, "seed", "must be a whole number"),
        *[({"optimizer.lr": v}, "optimizer.lr", "must be a number") for v in ("1e-3", True, [1])],
        ({"optimizer.lr": float("nan")}, "optimizer.lr", "must be a finite number"),
        ({"optimizer.lr": float("inf")}, "optimizer.lr", "must be a finite number"),
        *[({"norm.final_norm": v}, "norm.final_norm", "must be true or false") for v in (7, 1, 0.0, "no", "true")],
        ({"trainer.compile": 1}, "trainer.compile", "must be 'auto' or true or false"),
        ({"trainer.precision": 64}, "trainer.precision", "must be 'auto', '32-true', 'bf16-mixed' or 'bf16-true'"),
        ({"trainer": 5}, "trainer", "must be a mapping, such as {key: value}"),
        ({"trainer": None}, "trainer", "must be a mapping, such as {key: value}, not null"),
        ({"optimizer.betas": 0.9}, "optimizer.betas", "must be a list, such as [a, b]"),
        ({"optimizer.betas": []}, "optimizer.betas", "must be a list of 2 values"),
        ({"optimizer.betas": [0.9] * 3}, "optimizer.betas", "must have at most 2 items, not 3"),
        ({"optimizer.betas": [0.9, 1.5]}, "optimizer.betas.1", "must be less than 1"),
        ({"optimizer.betas": [True, 0.5]}, "optimizer.betas.0", "must be a number"),
        ({**FOLDER, "data.root": "x", "data.mean": [1]}, "data.mean", "must be a list of 3 values"),
        ({**FOLDER, "data.root": 2024}, "data.root", TEXT),
        ({**FOLDER, "data.root": ""}, "data.root", "must have at least 1 character"),
        ({"data": "text", "data.files": []}, "data", "needs either files or dataset, and none is given"),
        ({"data": "text", "data.files": 2024}, "data.files.0", TEXT),
    ],
)
def test_values_of_the_wrong_type(settings, path, message):
    assert {found: text for found, (text, _) in problems(settings).items()} == {path: message}


@pytest.mark.parametrize("kind", [12, 1.5, True, False, None, ["llama"], {}, {"a": 1}])
@pytest.mark.parametrize(
    ("part", "beside"),
    [
        ("model", "layers"),
        ("norm", "final_norm"),
        ("norm.layer", "eps"),
        ("norm.qk", "eps"),
        ("data", "seq_len"),
        ("optimizer", "lr"),
        ("schedule", "warmup_steps"),
        ("init", "std"),
    ],
)
def test_a_kind_that_is_no_name_is_not_the_default(part, beside, kind):
    for tree in ({part: {"kind": kind, beside: 2}}, {f"{part}.{beside}": 2, f"{part}.kind": kind}):
        found = problems(tree)
        assert re.match(r"unknown [\w ]+ .*\. Accepted: ", found[f"{part}.kind"][0])


@pytest.mark.parametrize(
    ("below", "above", "path"),
    [
        ({"model": 12}, {"model.layers": 2}, "model"),
        ({"trainer": 5}, {"trainer.max_steps": 2}, "trainer"),
        ({"evaluation": []}, {"evaluation.limit": 2}, "evaluation"),
        ({}, {"trainer.callbacks": {"LearningRateMonitor": {}}}, "trainer.callbacks"),
        ({"trainer.callbacks": ["LearningRateMonitor"]}, {"trainer.callbacks": {}}, "trainer.callbacks"),
    ],
)
def test_what_is_no_part_is_not_lost_below_the_fields_of_one(below, above, path):
    with pytest.raises(ConfigError) as caught:
        load(below, above)
    assert [p.path for p in caught.value.problems] == [path]


@pytest.mark.parametrize("one", [1, 1.0])
def test_whole_numbers_may_be_written_as_numbers_and_the_other_way_round(one):
    experiment = load({"seed": one, "optimizer.lr": one, "optimizer.betas": [0, 0.5]})
    assert (type(experiment.seed), type(experiment.optimizer.lr)) == (int, float)
    assert load({"trainer.max_steps": 1e3}).trainer.max_steps == 1000
    assert experiment.optimizer.betas == (0, 0.5)


class Plugin(Config):
    """What a user's own kind may have in its fields."""

    either: int | list[int] = 1
    some: Annotated[int, Field(gt=0)] | Literal["auto"] = "auto"
    names: list[str] = []
    table: dict[str, int] = {}
    pattern: Annotated[str, Field(pattern="^a+$")] = "a"
    even: Annotated[int, Field(multiple_of=2)] = 2
    loose: Annotated[float, Field(strict=False)] = 0
    mode: Literal["x"] = "x"


@pytest.mark.parametrize(
    ("tree", "path", "message"),
    [
        ({"either": 1.5}, "either", "must be a whole number or a list, such as [a, b]"),
        ({"some": 0}, "some", "must be greater than 0 or 'auto'"),
        ({"some": "two"}, "some", "must be a whole number or 'auto'"),
        ({"names": "a"}, "names", "must be a list, such as [a, b]"),
        ({"names": [3]}, "names.0", TEXT),
        ({"table": [1]}, "table", "must be a mapping, such as {key: value}"),
        ({"table": {"a": "2"}}, "table.a", "must be a whole number"),
        ({"pattern": "b"}, "pattern", "must match the pattern ^a+$"),
        ({"even": 3}, "even", "must be a multiple of 2"),
        ({"loose": "b"}, "loose", "must be a number"),
        ({"mode": "y"}, "mode", "must be 'x'"),
    ],
)
def test_fields_of_a_users_own(tree, path, message):
    with pytest.raises(ConfigError) as caught:
        build(Plugin, tree, source="here")
    assert [(p.path, p.message) for p in caught.value.problems] == [(path, message)]


@pytest.mark.parametrize(
    ("tree", "path", "message"),
    [
        ({"name": "bad/name", **SEARCH}, "name", "must consist of letters from A to Z, digits, dots, .*"),
        ({"name": "x" * 81, **SEARCH}, "name", "must have at most 80 characters"),
        (SEARCH, "name", "is required"),
        ({"name": "s", "arms": [1]}, "arms", "must be a mapping, .*"),
        ({"name": "s", "arms": {True: {}}}, "arms", "a key must be text, in quotes .*"),
        ({"name": "s", "arms": {"a": 5}}, "arms.a", "must be a mapping, .*"),
        ({"name": "s", "search": {"seed": {"low": True, "high": 2}}}, "search.seed.low", "must be a number"),
        ({"name": "s", "search": {"seed": {"low": 1}}}, "search.seed.high", "is required"),
        ({"name": "s", "search": {"seed": {"low": 2, "high": 1}}}, "search.seed", r"low \(2\) must be below high .*"),
        ({"name": "s", "budget": {"trials": "5"}, **SEARCH}, "budget.trials", "must be a whole number"),
    ],
)
def test_mistakes_in_a_sweep(tree, path, message):
    with pytest.raises(ConfigError) as caught:
        Sweep.from_tree(tree)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert re.fullmatch(message, problem.message), problem.message


@pytest.mark.parametrize("alpha", [1.5, -0.1, float("inf"), "a quarter"])
def test_alpha_outside(alpha):
    ((message, given),) = problems({"norm": "mix", "norm.alpha": alpha}).values()
    assert message.startswith("must be ")
    assert given == alpha


def test_parts_that_do_not_fit_are_reported_beside_wrong_fields():
    """But not what may be due to the default of a wrong field."""
    settings = {"model.heads": 3, "model.hidden": 16, "optimizer.lr": -1, "trainer.max_step": 5}
    assert set(problems(settings)) == {"model.heads", "optimizer.lr", "trainer.max_step"}
    settings = {"trainer.max_steps": "many", "schedule.warmup_steps": 5000, "model.heads": 3, "model.hidden": 16}
    assert set(problems(settings)) == {"trainer.max_steps", "model.heads"}
    assert set(problems({"model": "vitt", "data": "digits", "seed": -1})) == {"model.kind", "seed"}


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
        "trainer.accumulate": ("must divide trainer.batch_size (16). Set it to 2 or 4", 3),
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
    assert found == {"norm": (f"set {field} on norm itself, not on {part}", None)}
