"""A command as an experiment: its settings, its placeholders, and the arguments that it gets."""

import shlex

import pytest

from ablate.config.errors import ConfigError
from ablate.experiment import CommandExperiment, Experiment
from ablate.experiment.command import format_value
from ablate.experiment.tree import build_experiment, find_class
from ablate.sweeps.spec.sweep import Sweep

RUN = "python train.py --lr {optimizer.lr} --depth {depth} --seed {seed}"


def command(run=RUN, **more):
    given = {"kind": "command", "run": run, "optimizer.lr": 0.1, "depth": 4, **more}
    return build_experiment({key: value for key, value in given.items() if value is not None})


def sweep(run=RUN, **more):
    base = {"kind": "command", "run": run, "settings": {"depth": 2}, **more.pop("experiment", {})}
    tree = {
        "name": "script",
        "experiment": base,
        "arms": {"shallow": {}, "deep": {"depth": 4}},
        "search": {"optimizer.lr": {"low": 1e-3, "high": 1.0, "log": True}},
        "objective": {"metric": "loss", "direction": "minimize"},
        "budget": {"trials": 3},
    }
    return Sweep.from_tree({**tree, **more})


def refused(problem, build, *given, **more):
    with pytest.raises(ConfigError) as error:
        build(*given, **more)
    assert problem in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "value",
    [
        "a b", "it's", 'a "b" c', "x; rm -rf /", "$(rm x)", "`rm x`", "--flag", "", "{seed}", "{{depth}}", "a\nb", "*",
        "{", "\\", "täglich 測試",
    ],
)  # fmt: skip
def test_a_value_is_one_argument_whatever_is_in_it(value):
    words = command("prog --name={name} '{name}' last", name=value, depth=None, **{"optimizer.lr": None})
    assert words.build_arguments("/f") == ["prog", f"--name={value}", value, "last"]


@pytest.mark.parametrize(
    ("run", "arguments"),
    [
        ('p \'{"lr": {optimizer.lr}, "d": {depth}}\'', ["p", '{"lr": 0.1, "d": 4}']),
        ('p \'{"a": {"b": {optimizer.lr}}}\' {depth}', ["p", '{"a": {"b": 0.1}}', "4"]),
        ("p {{depth}} {optimizer.lr} {depth} {seed} {run_folder}", ["p", "{depth}", "0.1", "4", "0", "/f"]),
        (
            "p 'a | b' \"> c\" \\| '$x' http://h?a&b {optimizer.lr} {depth}",
            ["p", "a | b", "> c", "|", "$x", "http://h?a&b", "0.1", "4"],
        ),
        ("p 'a b' \"c d\" {optimizer.lr}{depth} {1} {}", ["p", "a b", "c d", "0.14", "{1}", "{}"]),
    ],
)
def test_only_names_in_braces_are_placeholders(run, arguments):
    assert command(run).build_arguments("/f") == arguments


@pytest.mark.parametrize(
    ("value", "text"), [(1e-05, "1e-05"), (0.1 + 0.2, "0.30000000000000004"), (3, "3"), (True, "true"), ("x", "x")]
)
def test_a_number_has_all_its_digits(value, text):
    assert format_value(value) == text


def test_settings_stand_beside_the_fields_or_below_settings():
    one = command()
    for settings in ({"settings": {"optimizer": {"lr": 0.1}, "depth": 4}}, {"settings.optimizer.lr": 0.1, "depth": 4}):
        assert build_experiment({"kind": "command", "run": RUN, **settings}) == one
    assert type(one).from_mapping(one.to_tree()) == one
    assert (one.flat()["optimizer.lr"], one.flat()["depth"]) == (0.1, 4)
    over = build_experiment({"kind": "command", "run": RUN, "settings": {"optimizer.lr": 1, "depth": 4}}, {"depth": 8})
    back = build_experiment({"kind": "command", "run": RUN, "optimizer.lr": 1, "depth": 4}, {"settings": {"depth": 8}})
    assert over.values == back.values == {"optimizer.lr": 1, "depth": 8}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"run": "p {lr} {depth}"}, "run: nothing gives {lr} a value: neither settings nor search nor this arm"),
        ({"wdith": 3}, "wdith: is no placeholder of run, so it would change nothing: write {wdith} there"),
        ({"timelimit": 3}, "Did you mean time_limit?"),
        ({"run": "p {optimizer.lr} {depth} {env}"}, "{env} is a field of the experiment"),
        ({"run": "p {optimizer.lr} {depth} | tee log"}, "run: | is for a shell, and none reads the line: write a scr"),
        ({"run": "p {optimizer.lr} {depth} >> out"}, "run: >> is for a shell"),
        ({"run": "p {optimizer.lr} {depth} 2>&1"}, "run: 2>&1 is for a shell"),
        ({"run": "p {optimizer.lr} {depth}; q"}, "run: {depth}; is for a shell"),
        ({"run": "p {optimizer.lr} {depth} --to=$HOME"}, "run: --to=$HOME is for a shell"),
        (
            {"run": "p {optimizer.lr --d {depth}"},
            "1 problem in the configuration:\n  run: the brace of {optimizer.lr is",
        ),
        ({"run": "p 'open"}, "cannot be split into arguments: No closing quotation"),
        ({"depth": [1, 2]}, "depth: must be text, a finite number, true or false"),
        ({"env": {"A": "{x}"}}, "env.A: nothing gives {x} a value"),
        ({"time_limit": 0}, "time_limit"),
        ({"result": {"kind": "regex", "pattern": "loss"}}, "has no group for the value"),
        ({"result": {"kind": "regex", "pattern": "("}}, "is not a regular expression"),
        ({"result": "stdout"}, "unknown result 'stdout'. Accepted: json, regex, file, mlflow."),
    ],
)
def test_what_cannot_be_run_is_refused(given, problem):
    refused(problem, command, **given)


def test_an_unknown_kind_names_those_that_there_are():
    refused("Accepted: command", find_class, {"kind": "comand"})
    assert find_class({"kind": "command"}) is CommandExperiment
    assert find_class({}, {"model": "llama"}) is Experiment


def test_a_sweep_is_checked_with_what_it_searches():
    spec = sweep()
    assert spec.base("deep").values == {"optimizer.lr": 0.001, "depth": 4}
    assert spec.at("shallow", {"optimizer.lr": 0.5, "seed": 7}).build_arguments("/f") == shlex.split(
        "python train.py --lr 0.5 --depth 2 --seed 7"
    )


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"search": {"optimizer.lr": [0.1, 0.2], "width": [1, 2]}}, "search.width: is no placeholder of run"),
        ({"search": {"optimizer.lr": [0.1, "x y"]}, "run": "p {lr} {depth}"}, "nothing gives {lr} a value"),
        ({"arms": {"a": {}, "b": {"heads": 2}}}, "arms.b.heads: is no placeholder of run"),
        ({"experiment": {"settings": {"depth": 1, "heads": 2}}}, "experiment.settings.heads: is no placeholder of run"),
        (
            {"search": {"lr": [0.1, 0.2], "optimizer.lr": [1, 2]}},
            "1 problem in the sweep:\n  search.lr: is no placeholder",
        ),
        ({"arms": {"a": {}, "b": {"kind": "command", "depth": 3}}}, "arms.b.kind: is set once, in experiment"),
        ({"arms": {"a": {}, "b": {"depth": 3, "run": "p {depth} {optimizer.lr}"}}}, "the arms differ in"),
        ({"objective": {}}, "objective.metric: is required: the name of the value"),
        ({"objective": {"metric": "loss"}}, "objective.direction: is required"),
        ({"compare": {"at": "flops"}, "confirm": {"seeds": 3}}, "compare.at: needs the cost of each update"),
        ({"target": 1.0, "confirm": {"seeds": 3}}, "target: needs the cost of each update"),
        ({"pruner": "median"}, "pruner: stops no run in its first third"),
        ({"search": {"method": "rungs", "optimizer.lr": [0.1, 0.2, 0.3]}}, "which runs of kind command do not have"),
    ],
)
def test_a_sweep_with_a_mistake_is_refused(more, problem):
    refused(problem, sweep, **more)


def test_the_name_of_a_setting_may_be_a_part_of_other_experiments():
    spec = sweep("p {norm} {optimizer.lr}", experiment={"settings": {}}, arms={"a": {"norm": "x"}, "b": {"norm": "y"}})
    assert [spec.base(arm).values["norm"] for arm in ("a", "b")] == ["x", "y"]


def test_sweeps_of_one_program_share_no_seeds_whatever_its_options():
    one, other, third = (
        build_experiment({"kind": "command", "run": run, "a": 1})
        for run in ("python t.py --a {a}", "python t.py {a} --b 3", "python u.py --a {a}")
    )
    assert one.identify() == other.identify() != third.identify()
    assert not one.identify().keys() & Experiment().identify().keys()
