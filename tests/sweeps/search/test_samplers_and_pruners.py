"""Samplers and pruners: what they are in Optuna's hands, without any training."""

import math

import optuna
import pytest
from pydantic import ValidationError
from sweeps.searchers import PRUNERS, SAMPLERS

from ablate.sweeps.search.adapted_samplers import replace_infinite
from ablate.sweeps.search.fair_pruners import FairPruner
from ablate.sweeps.search.pruners import pruners
from ablate.sweeps.search.samplers import samplers
from ablate.sweeps.search.space import Range, to_distributions
from ablate.sweeps.spec.sweep import Sweep

LR = Range(low=1e-4, high=1e-2, log=True)
ALPHA = Range(low=0.1, high=0.5)
SPACE = {"optimizer.lr": LR, "norm.alpha": ALPHA}


@pytest.fixture(autouse=True)
def quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


# ---------------------------------------------------------------------------------------------------- samplers


def propose(kind, space, count, seed=0):
    """The points of `count` trials, each asked as a worker does: with a sampler built for its number."""
    return [trial.params for trial in search(optuna.create_study(), kind, space, range(count), seed)]


def search(study, kind, space, numbers, seed=0):
    """The trials of `study` once those of `numbers` are asked and told."""
    for number in numbers:
        study.sampler = samplers.parse({**SAMPLERS[kind], "seed": seed}).build(number)
        trial = study.ask(to_distributions(space))
        study.tell(trial, sum(math.log(v) if v > 0 else v for v in trial.params.values()))
    return study.trials


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_seed_and_a_number_give_the_same_point(kind):
    first, again = propose(kind, SPACE, 9), propose(kind, SPACE, 9)
    assert first == again
    points = first[:3] if kind in ("gp", "GPSampler") or "NSGA" in kind else first  # which repeat points later
    assert len({tuple(point.values()) for point in points}) == len(points)
    assert first != propose(kind, SPACE, 9, seed=100)
    for point in first:
        assert 1e-4 <= point["optimizer.lr"] <= 1e-2
        assert 0.1 <= point["norm.alpha"] <= 0.5


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_continued_sweep_proposes_what_an_uninterrupted_one_does(kind):
    """Neither earlier draws of the process nor other samplers before it matter."""
    points = propose(kind, SPACE, 8)
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage)
    search(study, kind, SPACE, range(7))
    later = optuna.load_study(study_name=study.study_name, storage=storage)  # as another process finds it
    assert search(later, kind, SPACE, [7])[7].params == points[7]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_arms_get_the_same_first_random_points(kind):
    """What one arm searches besides does not move what all of them search."""
    searcher = samplers.parse(SAMPLERS[kind])
    early = {"CmaEsSampler": 1, "TPESampler": 8}.get(kind, 8)
    count = next((getattr(searcher, n) for n in ("n_startup_trials", "population_size") if hasattr(searcher, n)), early)
    spec = Sweep.from_tree(
        {
            "name": "arms",
            "arms": {
                "pre": {"norm": "pre"},
                "mix": {"norm": "mix", "search": {"norm.alpha": {"low": 0.1, "high": 0.5}}},
            },
            "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True}, "optimizer.weight_decay": [0.0, 0.1]},
        }
    )
    pre, mix = (propose(kind, spec.space(arm), count) for arm in ("pre", "mix"))
    shared = [{key: point[key] for key in ("optimizer.lr", "optimizer.weight_decay")} for point in mix]
    assert shared == pre
    assert len({point["optimizer.lr"] for point in pre}) == count


def test_seeds_side_by_side_share_no_points():
    zero, one = (propose("random", SPACE, 8, seed=seed) for seed in (0, 1))
    assert not any(point in zero for point in one)


def test_tpe_learns_after_its_random_start():
    points = propose("tpe", {"optimizer.lr": LR}, 40)
    late = [point["optimizer.lr"] for point in points[30:]]  # the least is best
    assert sum(lr < 3e-4 for lr in late) > 6


@pytest.mark.parametrize("sign", [1, -1])
def test_a_gaussian_process_learns_where_runs_diverge(sign):
    """Its three random trials diverge; Optuna's own, to which the first that trains is no better, stays at that."""
    study = optuna.create_study(direction="minimize" if sign == 1 else "maximize")
    for number in range(12):
        study.sampler = samplers["gp"](n_startup_trials=3).build(number)
        trial = study.ask(to_distributions({"optimizer.lr": Range(low=1e-4, high=1e-1, log=True)}))
        lr = trial.params["optimizer.lr"]
        study.tell(trial, sign * (math.inf if lr > 3e-3 else math.log10(lr / 1e-3) ** 2))
    assert sum(math.isinf(trial.value) for trial in study.trials[:3]) == 3
    assert abs(study.best_value) < 0.05


def test_what_diverged_is_worse_than_what_trained():
    values = [2.0, math.inf, 3.0, -math.inf]
    distributions = to_distributions({"optimizer.lr": LR})
    trials = [
        optuna.trial.create_trial(params={"optimizer.lr": 1e-3}, distributions=distributions, value=value)
        for value in values
    ]
    assert [trial.value for trial in replace_infinite(trials)] == [2.0, 4.0, 3.0, 1.0]
    assert [trial.value for trial in trials] == values
    assert [trial.value for trial in replace_infinite(trials[:2])] == [2.0, 3.0]


def test_cmaes_moves_towards_the_best():
    points = propose("cmaes", SPACE, 60)
    assert sum(p["optimizer.lr"] for p in points[50:]) < sum(p["optimizer.lr"] for p in points[:10]) / 2


@pytest.mark.parametrize(
    ("space", "refused"),
    [
        (SPACE, False),
        ({"optimizer.lr": LR}, True),
        ({**SPACE, "norm": ["pre", "post"]}, True),
        ({}, True),
    ],
)
def test_what_cmaes_can_search(space, refused):
    problems = samplers["cmaes"]().validate(space)
    assert bool(problems) == refused
    if refused:
        assert "cmaes searches two or more ranges" in problems[0].message


def test_what_a_grid_can_search():
    grid = samplers["grid"]()
    assert (
        grid.validate({"norm": ["pre"], "seed": Range(low=1, high=3), "norm.alpha": Range(low=0.0, high=1.0, num=3)})
        == []
    )
    assert [p.message for p in grid.validate({"seed": Range(low=1, high=3), **SPACE})] == [
        f"{path}: a grid needs a list of values, or num or step in addition to low and high" for path in SPACE
    ]


@pytest.mark.parametrize("kind", ["tpe", "random"])
def test_what_the_others_can_search(kind):
    assert samplers[kind]().validate({**SPACE, "norm": ["pre", "post"]}) == []


# ---------------------------------------------------------------------------------------------------- pruners


@pytest.mark.parametrize("kind", PRUNERS)
@pytest.mark.parametrize(
    ("given", "max_steps", "warmup", "expected"),
    [
        (None, 300, 30, 100),
        (None, 10_000, 1000, 3334),
        (None, 301, 0, 101),
        (None, 300, 150, 151),
        (None, 300, 99, 100),
        (None, 300, 100, 101),
        (None, 1, 0, 1),
        (5, 300, 30, 5),
    ],
)
def test_the_first_step(kind, given, max_steps, warmup, expected):
    """A third of the updates, rounded up, and in any case after the warm-up."""
    assert pruners.parse({**PRUNERS[kind], "first_step": given}).find_first_step(max_steps, warmup) == expected


def pruned_at(kind, max_steps, warmup, **fields):
    """The updates at which trials that are worse than 30 good ones are pruned."""
    study = optuna.create_study(pruner=FairPruner(pruners.parse({**PRUNERS[kind], **fields}).build(max_steps, warmup)))
    found = []
    for number in range(45):
        trial = study.ask()
        for step in range(1, max_steps + 1):
            trial.report(1.0 + 0.001 * number if number < 30 else 100.0 + number, step)
            if number >= 30 and trial.should_prune():
                found.append(step)
                break
        study.tell(trial, 1.0 if number < 30 else 100.0)
    return found


@pytest.mark.parametrize("kind", ["none", "NopPruner"])
def test_none_prunes_nothing(kind):
    assert pruned_at(kind, 30, 3) == []


@pytest.mark.parametrize("kind", [kind for kind in PRUNERS if kind not in ("none", "NopPruner")])
@pytest.mark.parametrize(("warmup", "first"), [(3, 10), (14, 15)])
def test_bad_trials_are_pruned_from_the_first_step_on(kind, warmup, first):
    found = pruned_at(kind, 30, warmup)
    assert len(found) >= 5
    assert min(found) == first


@pytest.mark.parametrize("kind", PRUNERS)
def test_what_a_pruner_refuses(kind):
    with pytest.raises(ValidationError):
        pruners.parse({**PRUNERS[kind], "first_step": 0})


@pytest.mark.parametrize("kind", [kind for kind in pruners if kind != "optuna"])
def test_what_the_short_kinds_of_pruners_refuse(kind):
    if "reduction_factor" in pruners[kind].model_fields:
        with pytest.raises(ValidationError):
            pruners[kind](reduction_factor=1)


# ---------------------------------------------------------------------------------------------------- both


def test_options_are_optunas_arguments():
    sampler = samplers["tpe"](options={"n_ei_candidates": 48, "constant_liar": False}).build(0)
    assert sampler._n_ei_candidates == 48
    pruner = pruners["median"](options={"interval_steps": 5}).build(30, 3)
    assert pruner._interval_steps == 5


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (
            samplers["tpe"],
            {"n_ei_candidate": 48},
            r"has no argument n_ei_candidate\. Accepted: .*Did you mean n_ei_candidates",
        ),
        (samplers["tpe"], {"n_startup_trials": 3}, "n_startup_trials is a field next to options"),
        (samplers["tpe"], {"seed": 3}, "has no argument seed"),
        (samplers["random"], {"a": 3}, "has no argument a. Accepted: nothing"),
        (pruners["median"], {"n_warmup_steps": 1}, "has no argument n_warmup_steps"),
        (pruners["hyperband"], {"min_resource": 1}, "has no argument min_resource"),
    ],
)
def test_options_that_are_wrong_or_ours(method, options, message):
    with pytest.raises(ValidationError, match=message):
        method(options=options)
