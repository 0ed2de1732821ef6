"""Sweep files: reading, overriding, what they lead to, and what is wrong with them."""

import contextlib

import pytest
import yaml
from sweeps.searchers import PRUNERS, SAMPLERS

from ablate.config.building import json_schema
from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment
from ablate.sweeps.search.methods import pruners, samplers
from ablate.sweeps.search.space import Range, contains
from ablate.sweeps.spec.parts import Objective
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.spec.trees import apply_overrides, divide

FILE = """\
# A header.
name: mix-demo
experiment:
  model: {kind: llama, hidden: 32, layers: 4, heads: 2}
  trainer.max_steps: 60
arms:
  pre: {norm: pre}
  mix: {norm.kind: mix, search: {norm.alpha: {low: 0.1, high: 0.5}}}
search:
  optimizer.lr: {low: 1e-4, high: 1e-2, log: true}
objective: {metric: val/perplexity}
budget: {trials: 12}
sampler: {kind: random, seed: 4}
pruner: median
"""
LR = {"low": 1e-4, "high": 1e-2, "log": True}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "demo.yaml"
    path.write_text(FILE)
    return path


def sweep(**parts):
    return Sweep.from_tree({"name": "demo", "search": {"optimizer.lr": LR}, **parts})


def problems(**parts):
    """{path: (message, given)} of everything that is wrong."""
    with pytest.raises(ConfigError) as caught:
        sweep(**parts)
    found = [(p.path, p.message, p.given) for p in caught.value.problems]
    assert len(found) == len(set(map(repr, found)))
    return found


# ---------------------------------------------------------------------------------------------------- reading


WRONG = [3, 1.5, True, "abc", [1], [[1]], [None], (1,), {"a": "x"}, {"a": [None]}, {1: 2}, {None: 1}, b"x", object()]
"""Values that no field of a sweep takes, but for its name, its metric and the like, which take text or a number."""


@pytest.mark.parametrize("field", [*Sweep.model_fields])
def test_a_value_of_another_type_is_told_whatever_the_field(field):
    """By Python, where more types can be given than by YAML, and for the parts and the settings of the command line."""
    for wrong in WRONG:
        tree = {"name": "demo", "search": {"optimizer.lr": LR}, field: wrong}
        for read in (
            lambda tree: Sweep.from_tree(tree),
            lambda tree: [Sweep.from_tree(part) for part in divide(tree, "file").trees.values()],
            lambda tree: apply_overrides(Sweep, tree, {"search.optimizer.lr": [0.1], "budget.trials": 3}, "file"),
        ):
            with contextlib.suppress(ConfigError):
                read(tree)


@pytest.mark.parametrize("wrong", [3, 0, False, "", []])
@pytest.mark.parametrize("key", ["sizes", "stages"])
def test_what_divides_a_file_is_a_mapping(key, wrong):
    for read in (Sweep.from_tree, lambda tree: divide(tree, "file")):
        with pytest.raises(ConfigError, match=f"{key}: must be a mapping"):
            read({"name": "demo", "search": {"optimizer.lr": LR}, key: wrong})


def test_a_copy_leads_to_experiments_of_its_own():
    first = sweep(experiment={"trainer.max_steps": 10})
    assert first.base("all") is first.base("all")
    second = first.model_copy(update={"experiment": {"trainer.max_steps": 20}})
    assert (first.base("all").trainer.max_steps, second.base("all").trainer.max_steps) == (10, 20)
    assert first == sweep(experiment={"trainer.max_steps": 10})  # whatever it has been asked for


def test_a_file(file):
    spec = Sweep.load(file)
    assert (spec.name, spec.budget.trials) == ("mix-demo", 12)
    assert spec.objective == Objective(metric="val/perplexity", direction="minimize")
    assert spec.sampler == samplers["random"](seed=4)
    assert spec.pruner == pruners["median"]()
    assert list(spec.all_arms) == ["pre", "mix"]
    assert spec.space("pre") == {"optimizer.lr": Range(low=1e-4, high=1e-2, log=True)}
    assert list(spec.space("mix")) == ["optimizer.lr", "norm.alpha"]
    assert spec.space("mix")["norm.alpha"] == Range(low=0.1, high=0.5)
    assert (spec.trials("pre"), spec.trials("mix")) == (12, 12)


def test_what_it_leads_to(file):
    spec = Sweep.load(file)
    model = {"kind": "llama", "hidden": 32, "layers": 4, "heads": 2}
    common = {"model": model, "trainer": {"max_steps": 60, "val_samples": 144}}  # 60 * 16 * 0.3 in two validations
    assert spec.base("pre") == Experiment.from_mapping({**common, "optimizer.lr": 1e-4})
    mix = {"norm": {"kind": "mix", "alpha": 0.5}, "optimizer.lr": 3e-3}
    assert spec.at("mix", {"norm.alpha": 0.5, "optimizer.lr": 3e-3}) == Experiment.from_mapping({**common, **mix})


def test_without_arms_there_is_one_called_all():
    spec = sweep(experiment={"norm": "mix"})
    assert list(spec.all_arms) == ["all"]
    assert spec.at("all", {"optimizer.lr": 0.5}).optimizer.lr == 0.5
    assert spec.base("all").norm.kind == "mix"


TREES = [
    {},
    {"arms": {"pre": {"norm": "pre"}, "mix": {"norm": {"kind": "mix"}, "search": {"norm.alpha": [0.25, 0.5]}}}},
    {"experiment": {"trainer.gradient_clip_val": None, "model": {"kv_heads": None}}},
    {"search": {"trainer.gradient_clip_val": [None, 1.0], "trainer.max_steps": {"low": 10, "high": 90}}},
    {"sampler": {"kind": "grid"}, "search": {"norm": ["pre", "post"], "model.layers": {"low": 1, "high": 3}}},
    {"budget": {"trials": 3}, "objective": {"metric": "val/accuracy", "direction": "maximize"}},
]


ANY_SPACE = [kind for kind in SAMPLERS if kind != "grid"]
PARTS = [
    *TREES,
    *({"pruner": given} for given in PRUNERS.values()),
    *({"sampler": {**SAMPLERS[kind], "seed": 3}} for kind in ANY_SPACE),
]


@pytest.mark.parametrize("parts", PARTS)
def test_round_trip(parts, tmp_path):
    spec = sweep(**parts)
    assert Sweep.from_tree(spec.to_tree()) == spec
    assert Sweep.from_tree(yaml.safe_load(spec.to_yaml())) == spec
    file = tmp_path / "again.yaml"
    file.write_text(spec.to_yaml())
    again = Sweep.load(file)
    assert again == spec
    for arm in spec.all_arms:
        assert again.base(arm) == spec.base(arm)
        assert again.space(arm) == spec.space(arm)


def test_a_dumped_arm_is_written_as_in_a_file():
    spec = sweep(arms={"mix": {"norm": "mix", "search": {"norm.alpha": [0.5]}}, "pre": {"norm": "pre"}})
    assert spec.to_tree()["arms"] == {"mix": {"norm": "mix", "search": {"norm.alpha": [0.5]}}, "pre": {"norm": "pre"}}


def test_everything_has_a_default_but_the_name():
    spec = sweep()
    assert (spec.trials("all"), spec.objective.metric, spec.objective.direction) == (10, "val/loss", "minimize")
    assert (spec.sampler.kind, spec.pruner.kind) == ("gp", "none")
    with pytest.raises(ConfigError, match="name: is required"):
        Sweep.from_tree({"search": {"optimizer.lr": LR}})


# ---------------------------------------------------------------------------------------------------- overrides


def test_overrides_of_the_experiment(file):
    spec = Sweep.load(
        file, {"trainer.max_steps": 30, "model": "llama-9m", "experiment.seed": 5, "norm.layer": "layernorm"}
    )
    for arm in ("pre", "mix"):
        experiment = spec.base(arm)
        assert (experiment.trainer.max_steps, experiment.seed, experiment.model.hidden) == (30, 5, 128)
        assert experiment.norm.layer.kind == "layernorm"
        assert experiment.norm.kind == arm


def test_overrides_of_the_sweep(file):
    given = {
        "name": "other",
        "budget.trials": 3,
        "sampler": "tpe",
        "pruner.kind": "median",
        "objective.metric": "val/loss",
    }
    spec = Sweep.load(file, given)
    assert (spec.name, spec.budget.trials, spec.objective.metric) == ("other", 3, "val/loss")
    assert spec.sampler == samplers["tpe"](seed=4)  # the seed is common to all samplers
    assert spec.pruner == pruners["median"]()
    assert Sweep.load(file, {"sampler.kind": "gp", "sampler.n_startup_trials": 2}).sampler.n_startup_trials == 2
    assert spec.base("pre") == Sweep.load(file).base("pre")


def test_overrides_of_what_is_searched(file):
    before, spec = (
        Sweep.load(file),
        Sweep.load(file, {"search.optimizer.lr": [1e-3], "search.model.layers": {"low": 1, "high": 3}}),
    )
    assert spec.search["optimizer.lr"] == [1e-3]
    assert (spec.search["model.layers"].low, spec.search["model.layers"].high) == (1, 3)
    assert spec.arms["mix"].search == before.arms["mix"].search
    with pytest.raises(ConfigError, match=r"search\.optimizer\.lrr: unknown key"):
        Sweep.load(file, {"search.optimizer.lrr": [1e-3]})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"budget.trails": 3}, r"budget\.trails: unknown key. Did you mean budget\.trials\?"),
        ({"sampler": "tp"}, "unknown sampler 'tp'.*Did you mean tpe?"),
        ({"trainer.max_step": 3}, r"experiment\.trainer\.max_step: unknown key. Did you mean trainer\.max_steps\?"),
        ({"trainer.max_steps": 0}, r"experiment\.trainer\.max_steps: must be greater than 0 \(given: 0\)"),
        ({"norm.alpha": 0.3}, r"norm\.alpha: unknown key. It belongs to norm\.kind mix"),
    ],
)
def test_overrides_that_are_wrong(file, overrides, message):
    with pytest.raises(ConfigError, match=message):
        Sweep.load(file, overrides)


# ---------------------------------------------------------------------------------------------------- the budget


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        ({"search": {"norm": ["pre", "post"], "model.layers": [1, 2, 3]}}, 6),
        ({"search": {"optimizer.lr": {**LR, "num": 12}}}, 12),
        ({"search": {"optimizer.lr": {**LR, "num": 12}}, "budget": {"trials": 5}}, 5),
        ({"search": {"optimizer.lr": {**LR, "num": 3}}, "budget": {"trials": 5}}, 3),
        ({"search": {"model.layers": {"low": 1, "high": 4}, "norm": ["pre", "post"]}}, 8),
    ],
)
def test_a_grid_has_its_cells_for_a_budget(parts, count):
    assert sweep(sampler="grid", **parts).trials("all") == count


def test_a_stored_grid_keeps_its_cells():
    spec = sweep(sampler="grid", search={"optimizer.lr": {**LR, "num": 12}})
    assert Sweep.model_validate(spec.to_tree()).trials("all") == spec.trials("all") == 12


# ---------------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("parts", "path", "message"),
    [
        ({"search": {"optimizer.lrr": [1]}}, "search.optimizer.lrr", "unknown key. Did you mean optimizer.lr?"),
        ({"search": {"norm.alpha": [0.5]}}, "search.norm.alpha", "unknown key. It belongs to norm.kind mix."),
        ({"search": {"norm": ["pre", "mxi"]}}, "search.norm", "norm.kind: unknown placement 'mxi'."),
        ({"search": {"optimizer.lr": []}}, "search.optimizer.lr", "must be a list of values, or a mapping with low"),
        ({"search": {"optimizer.lr": 0.1}}, "search.optimizer.lr", "must be a list of values, or a mapping with low"),
        ({"search": {"optimizer.lr": {"low": 1e-4}}}, "search.optimizer.lr.high", "is required"),
        (
            {"search": {"optimizer.lr": {"low": 1, "high": 0.1}}},
            "search.optimizer.lr",
            "low (1) must be below high (0.1)",
        ),
        ({"search": {"optimizer.lr": {"low": 0, "high": 1}}}, "search.optimizer.lr", "must be greater than 0"),
        (
            {"search": {"schedule.warmup_steps": {"low": 1, "high": 300}}},
            "search.schedule.warmup_steps",
            "the warm-up (300)",
        ),
        ({"search": {"model.heads": [4, 3]}}, "search.model.heads", "must divide hidden (128)"),
        ({"search": {}}, "search", "nothing is searched, so all 10 trials would be identical"),
        ({"search": [1]}, "search", "must be a mapping"),
        ({"sampler": "grid"}, "search", "optimizer.lr: a grid needs a list of values, or num in addition"),
        (
            {"experiment": {"norm": {"kind": "mix", "alpha": 1.5}}},
            "experiment.norm.alpha",
            "must be less than or equal",
        ),
        ({"experiment": {"sede": 1}}, "experiment.sede", "unknown key. Did you mean seed?"),
        ({"experiment": 3}, "experiment", "must be a mapping"),
        ({"arms": {"mix": {"norm": "mxi"}}}, "arms.mix.norm.kind", "unknown placement 'mxi'."),
        (
            {"arms": {"mix": {"norm": "mix", "norm.alpha": 1.5}}},
            "arms.mix.norm.alpha",
            "must be less than or equal to 1",
        ),
        (
            {"arms": {"mix": {"norm": {"kind": "mix", "alpha": 1.5}}}},
            "arms.mix.norm.alpha",
            "must be less than or equal",
        ),
        ({"arms": {"mix": {"search": {"norm.alpha": [0.5]}}}}, "arms.mix.search.norm.alpha", "unknown key. It belongs"),
        (
            {"arms": {"mix": {"norm": "mix", "search": {"norm.alpha": {"low": 0.1, "high": 1.5}}}}},
            "arms.mix.search.norm.alpha",
            "must be less than or equal to 1",
        ),
        ({"arms": {"a/b": {}}}, "arms", "the name of an arm must have 1 to 200 printable characters"),
        ({"arms": {"a@b": {}}}, "arms", "the name of an arm must have 1 to 200 printable characters"),
        ({"budget": {"trials": 0}}, "budget.trials", "must be greater than 0"),
        ({"budget": {"trails": 1}}, "budget.trails", "unknown key. Did you mean budget.trials?"),
        ({"objective": {"direction": "max"}}, "objective.direction", "must be 'minimize' or 'maximize'"),
        ({"pruner": "medain"}, "pruner", "unknown pruner 'medain'."),
        (
            {"sampler": {"kind": "random", "n_startup_trials": 3}},
            "sampler.n_startup_trials",
            "unknown key. It belongs to",
        ),
        ({"fixed": [{"optimizer.lr": 1.0}]}, "fixed.0.optimizer.lr", "is not in the search space (0.0001 ... 0.01"),
        (
            {"fixed": [{"optimizer.lt": 1e-3}]},
            "fixed.0.optimizer.lt",
            "is not searched for all. Accepted: optimizer.lr",
        ),
        (
            {"search": {"optimizer.lr": [1e-3, 2e-3]}, "fixed": [{"optimizer.lr": 3e-3}]},
            "fixed.0.optimizer.lr",
            "is not in the search space ([0.001, 0.002])",
        ),
        (
            {"sampler": "grid", "search": {"optimizer.lr": [1e-3]}, "fixed": [{"optimizer.lr": 1e-3}]},
            "fixed.0",
            "a grid tries every cell anyway",
        ),
        ({"confirm": {"effect": 0}}, "confirm.effect", "must be greater than 0"),
        (
            {"arms": {"pre": {"norm": "pre"}}, "published": [{"source": "a paper", "values": {"pro": 1.0}}]},
            "published.0.values",
            "pro is not an arm. Accepted: pre. Did you mean pre?",
        ),
        ({"checkpoints": "some"}, "checkpoints", "must be 'best', 'all' or 'none'"),
        ({"arm": {}}, "arm", "unknown key. Did you mean arms?"),
        ({"name": "a/b"}, "name", "must consist of letters from A to Z, digits"),
        ({"name": "a" * 81}, "name", "must have at most 80 characters"),
    ],
)
def test_one_problem(parts, path, message):
    found = problems(**parts)
    assert {p for p, _, _ in found} == {path}
    assert all(text.startswith(message) for _, text, _ in found)


def test_what_a_range_or_a_list_contains():
    whole, log = Range(low=2, high=8), Range(low=1e-4, high=1e-2, log=True)
    assert [v for v in (1, 2, 3, 8, 10, 2.0, True) if contains(whole, v)] == [2, 3, 8]
    assert [v for v in (1e-5, 1e-4, 3e-4, 1e-2, 0.1, "a") if contains(log, v)] == [1e-4, 3e-4, 1e-2]
    assert [v for v in (True, 1, "a", None) if contains([1, "a"], v)] == [1, "a"]


def test_problems_of_all_arms_at_once_each_with_its_place():
    found = problems(
        experiment={"seed": -1},
        arms={
            "wrong": {"optimizer.lr": -1},
            "right": {"norm": "post"},
            "unknown": {"norm.alpha": 0.5},
        },
    )
    assert sorted(found) == [
        ("arms.unknown.norm.alpha", "unknown key. It belongs to norm.kind mix.", 0.5),
        ("arms.wrong.optimizer.lr", "must be greater than 0", -1),
        ("experiment.seed", "must be greater than or equal to 0", -1),
    ]


def test_problems_of_the_file_and_of_its_experiments_are_told_together():
    found = problems(budget={"trials": -1}, search={"optimizer.lrr": [1e-3]}, nme="x")
    assert sorted(path for path, _, _ in found) == ["budget.trials", "nme", "search.optimizer.lrr"]
    assert [path for path, _, _ in problems(search=3)] == ["search"]  # and nothing that follows from it


def test_both_ends_are_tried():
    found = problems(arms={"a": {"norm": "mix", "search": {"norm.alpha": {"low": -0.5, "high": 1.5}}}})
    assert [(path, given) for path, _, given in found] == [("arms.a.search.norm.alpha", v) for v in (-0.5, 1.5)]


def test_the_message_names_the_file(file):
    file.write_text(FILE.replace("high: 0.5", "high: 1.5"))
    with pytest.raises(ConfigError) as caught:
        Sweep.load(file)
    assert str(caught.value).splitlines() == [
        f"1 problem in {file}:",
        "  arms.mix.search.norm.alpha: must be less than or equal to 1 (given: 1.5)",
    ]


def test_one_trial_needs_no_search():
    assert sweep(search={}, budget={"trials": 1}).trials("all") == 1


def test_the_schema_of_sweeps_resolves():
    schema = json_schema(Sweep)

    def references(part):
        if isinstance(part, dict):
            yield from ([part["$ref"]] if isinstance(part.get("$ref"), str) else [])
            for value in part.values():
                yield from references(value)
        elif isinstance(part, list):
            for value in part:
                yield from references(value)

    found = set(references(schema))
    assert {"#/$defs/sampler", "#/$defs/pruner"} <= found
    assert all(name in schema[place] for place, name in (reference[2:].split("/") for reference in found))
    for field in schema["properties"].values():
        inner = schema["$defs"][field["$ref"].removeprefix("#/$defs/")] if "$ref" in field else {}
        assert field.get("description") or inner.get("description")


def test_the_schema_of_sweeps_lets_an_arm_have_settings():
    assert json_schema(Sweep)["$defs"]["Arm"].get("additionalProperties") is not False


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("val/loss", "minimize"),
        ("val/accuracy", "maximize"),
        ("val/ema/accuracy_top5", "maximize"),
        ("val/wiki/perplexity", "minimize"),
        ("align/win_rate", "maximize"),
        ("align/kl", "minimize"),
        ("eval/piqa/acc_norm", "maximize"),
        ("eval/lambada_openai/perplexity", "minimize"),
        ("mean(val/perplexity, val/wiki/perplexity)", "minimize"),
        ("mean(eval/piqa/acc_norm, eval/winogrande/acc)", "maximize"),
    ],
)
def test_the_direction_follows_from_the_metric(metric, direction):
    assert Objective(metric=metric).direction == direction
    assert Objective(metric=metric, direction="maximize").direction == "maximize"


LONG = {"data": {"kind": "topics", "seq_len": 64}, "trainer": {"max_steps": 3000, "batch_size": 16}}


def test_all_trials_of_all_arms_are_validated_on_the_same_samples():
    arms = {"pre": {"norm": "pre"}, "short": {"norm": "post", "trainer.max_steps": 1500}}
    spec = sweep(experiment=LONG, arms=arms, search={"trainer.batch_size": [16, 8]}, confounds=["trainer"])
    ends = [("pre", 16), ("pre", 8), ("short", 16), ("short", 8)]
    counts = {spec.at(arm, {"trainer.batch_size": batch}).validation.samples for arm, batch in ends}
    assert counts == {1500 * 8 * 0.3 / 6}  # those of the smallest run
    alone = sweep(experiment=LONG, arms={"pre": {"norm": "pre"}, "post": {"norm": "post"}})
    assert alone.base("post").validation == Experiment.from_mapping(LONG).validation


def test_what_a_sweep_says_of_its_validation_holds():
    asked = sweep(experiment={**LONG, "trainer.val_samples": "all"})
    assert asked.base("all").validation.samples is None
    one = {"pre": {"norm": "pre"}, "post": {"norm": "post", "trainer.val_samples": 7}}
    with pytest.raises(ConfigError, match=r"the arms differ in trainer.val_samples: 2400 \(pre\), 7 \(post\)"):
        sweep(experiment=LONG, arms=one)


def test_problems_of_the_file_hide_none_of_its_experiments():
    """A wrong sampler, a wrong arm, a wrong base and a searched path that does not exist are told together."""
    with pytest.raises(ConfigError) as refused:
        Sweep.from_tree(
            {
                "name": "s",
                "experiment": {"data": {"kind": "topics", "seq_lenn": 64}},
                "arms": {"a": {"norm.layer": "rmsnrm"}, "b": {}},
                "search": {"optimizer.lrr": [1e-3, 3e-3], "optimizer.lr": [-1.0, 1e-3], "trainer.max_steps": "many"},
                "sampler": "gridd",
                "confirm": {"seeds": -3},
            }
        )
    assert {problem.path for problem in refused.value.problems} == {
        "sampler", "confirm.seeds", "search.trainer.max_steps", "arms.a.norm.layer.kind", "experiment.data.seq_lenn",
        "search.optimizer.lrr", "search.optimizer.lr",
    }  # fmt: skip


def test_a_key_of_the_experiment_at_the_top_of_the_file_is_told_where_it_belongs():
    ((path, message, _),) = problems(trainer={"max_steps": 10})
    assert (path, message) == ("trainer", "belongs to the experiment: indent it below experiment:")


def test_settings_of_the_command_line_that_are_parts_of_the_sweep():
    tree = {"name": "s", "search": {"optimizer.lr": LR}}
    with pytest.raises(ConfigError) as refused:
        apply_overrides(
            Sweep, tree, {"nam": "x", "confirmm.seeds": 3, "arms.a.norm": "pre", "components": {}}, "s.yaml"
        )
    told = {problem.path: problem.message for problem in refused.value.problems}
    assert told["nam"].endswith("Did you mean name?")
    assert told["confirmm.seeds"].endswith("Did you mean confirm?")
    assert "only the file can set this" in told["arms.a.norm"]
    assert "only the file can set this" in told["components"]
    changed = apply_overrides(Sweep, tree, {"norm.factor": 0.7, "model.name": "deit"}, "s.yaml")  # not factor, not name
    assert changed["experiment"]["norm"] == {"factor": 0.7}
