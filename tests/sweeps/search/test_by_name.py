"""Samplers and pruners by Optuna's names: which are accepted, what is told of the others, and of wrong arguments."""

import inspect

import optuna
import pytest
from sweeps.searchers import ACCEPTED_PRUNERS, ACCEPTED_SAMPLERS

from ablate.config.errors import ConfigError
from ablate.sweeps.dry_run import outline
from ablate.sweeps.search.optuna_classes import PACKAGES
from ablate.sweeps.search.pruners import pruners
from ablate.sweeps.search.samplers import samplers
from ablate.sweeps.spec.sweep import Sweep

REFUSED = {
    "BoTorchSampler": "optuna-integration",
    "BruteForceSampler": "grid",
    "GridSampler": "grid",
    "PartialFixedSampler": "needs another sampler",
    "PatientPruner": "judges a trial by itself",
    "ThresholdPruner": "judges a trial by itself",
    "WilcoxonPruner": "independent problems",
}
RATES = {"optimizer.lr": {"low": 3e-4, "high": 3e-2, "log": True}}


def sweep(**parts):
    return Sweep.from_tree({"name": "named", "search": RATES, **parts})


def read_problems(**parts):
    with pytest.raises(ConfigError) as told:
        sweep(**parts)
    return {problem.path: problem.message for problem in told.value.problems}


@pytest.mark.parametrize(("package", "base"), [("samplers", "BaseSampler"), ("pruners", "BasePruner")])
def test_every_class_of_optuna_is_accepted_or_refused_with_a_reason(package, base):
    module = getattr(optuna, package)
    classes = {
        name
        for name in module.__all__
        if inspect.isclass(cls := getattr(module, name)) and issubclass(cls, getattr(module, base))
    }
    known = {*ACCEPTED_SAMPLERS, *ACCEPTED_PRUNERS, *REFUSED}
    assert {name for name in classes if not name.startswith("Base")} <= known
    entries = PACKAGES[package].entries
    assert {name for name, entry in entries.items() if entry.refused is None} == {
        name for name in (*ACCEPTED_SAMPLERS, *ACCEPTED_PRUNERS) if name in classes
    }


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_class_is_told_with_the_reason(name):
    part = "pruner" if name.endswith("Pruner") else "sampler"
    (message,) = read_problems(**{part: {"kind": "optuna", "name": name}}).values()
    assert REFUSED[name] in message


@pytest.mark.parametrize(
    ("part", "given", "path", "message"),
    [
        ("sampler", {"name": "gpsampler"}, "name", "Did you mean GPSampler?"),
        ("sampler", {"name": "GPSampler", "n_startup": 3}, "n_startup", "Did you mean n_startup_trials?"),
        ("sampler", {"name": "GPSampler", "n_startup_trials": "a"}, "n_startup_trials", "must be a whole number"),
        ("sampler", {"name": "GPSampler", "independent_sampler": "a"}, "independent_sampler", "no such argument"),
        ("sampler", {"name": "QMCSampler", "qmc_type": "halt"}, "", "Choose either `halton` or `sobol`"),
        ("sampler", {"name": "CmaEsSampler"}, "search", "CmaEsSampler searches two or more ranges"),
        ("pruner", {"name": "Median"}, "name", "Did you mean MedianPruner?"),
        ("pruner", {"name": "PercentilePruner"}, "percentile", "is required"),
        ("pruner", {"name": "MedianPruner", "n_warmup_steps": 3}, "n_warmup_steps", "no such argument"),
        ("pruner", {"name": "SuccessiveHalvingPruner", "reduction_factor": 1}, "", "must be `reduction_factor >= 2`"),
    ],
)
def test_what_is_wrong_is_told_with_its_path(part, given, path, message):
    problems = read_problems(**{part: {"kind": "optuna", **given}})
    where = path if path == "search" else f"{part}.{path}".rstrip(".")
    assert message in problems[where]
    assert len(problems) == 1


def test_all_that_is_wrong_is_told_at_once():
    sampler, pruner = {"kind": "optuna", "name": "TPE"}, {"kind": "optuna", "name": "Median"}
    experiment = {"model": {"hidden": -1}}
    problems = read_problems(sampler=sampler, pruner=pruner, experiment=experiment)
    assert problems.keys() == {"sampler.name", "pruner.name", "experiment.model.hidden"}


@pytest.mark.parametrize("name", ACCEPTED_SAMPLERS)
def test_arguments_reach_optuna(name):
    """What is built is Optuna's class, or one of it, with what was given."""
    given = samplers.parse({"kind": "optuna", "name": name, **ACCEPTED_SAMPLERS[name]})
    assert given.validate_arguments() == []
    sampler = given.build(3)
    assert isinstance(sampler, getattr(optuna.samplers, name))
    for argument, value in ACCEPTED_SAMPLERS[name].items():
        assert getattr(sampler, f"_{argument}") == value


def test_a_named_pruner_begins_at_the_first_step():
    pruner = pruners.parse({"kind": "optuna", "name": "HyperbandPruner", "reduction_factor": 4}).build(300, 30)
    assert (pruner._min_resource, pruner._max_resource, pruner._reduction_factor) == (100, 300, 4)
    pruner = pruners.parse({"kind": "optuna", "name": "MedianPruner", "first_step": 150}).build(300, 30)
    assert (pruner._n_warmup_steps, pruner._n_startup_trials) == (150, 5)


def test_a_stored_sweep_keeps_its_sampler():
    spec = sweep(sampler={"kind": "optuna", "name": "GPSampler", "n_startup_trials": 3, "seed": 7})
    again = Sweep.model_validate(spec.to_tree())
    assert again.sampler == spec.sampler
    assert (again.sampler.seed, again.sampler.list_arguments()) == (7, {"n_startup_trials": 3})


def test_points_of_qmc_fill_the_space_evenly_in_every_seed():
    """Of 16 points each sixteenth of the range holds one, as of no sequence that is drawn."""
    for seed in range(3):
        numbers = []
        study = optuna.create_study()
        for number in range(16):
            study.sampler = samplers["qmc"](seed=seed).build(number)
            trial = study.ask({"x": optuna.distributions.FloatDistribution(0.0, 1.0)})
            numbers.append(trial.params["x"])
            study.tell(trial, 0.0)
        shift = numbers[0]
        assert sorted(round(16 * ((x - shift) % 1.0), 6) % 16 for x in numbers) == list(range(16))


def test_a_plan_names_the_sampler_and_its_limit(tiny_settings):
    text = outline(sweep(experiment=tiny_settings, sampler={"kind": "optuna", "name": "GPSampler"}))
    assert "sampler GPSampler of Optuna (its first n_startup_trials trials are random (10 by default)" in text


@pytest.mark.parametrize(
    ("sampler", "pruner", "told"),
    [("gp", "median", True), ("gp", "none", False), ("tpe", "median", False), ("cmaes", "median", True)],
)
def test_a_plan_says_that_a_sampler_learns_nothing_from_pruned_trials(tiny_settings, sampler, pruner, told):
    rates = {**RATES, "optimizer.weight_decay": {"low": 0.0, "high": 0.1}}
    text = outline(sweep(experiment=tiny_settings, sampler=sampler, pruner=pruner, search=rates))
    assert ("does not learn from pruned trials" in text) == told
