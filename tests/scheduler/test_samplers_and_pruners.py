"""Samplers and pruners: what they are in Optuna's hands, without any training."""

import math

import optuna
import pytest
from sweeps.searchers import SAMPLERS

from ablate.scheduler.dry_run import outline
from ablate.scheduler.optuna_private import replace_infinite
from ablate.scheduler.samplers import build_pruner, build_sampler, to_distributions
from ablate.sweeps.search.methods import pruners, samplers
from ablate.sweeps.search.space import Range
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
        study.sampler = build_sampler(samplers.parse({**SAMPLERS[kind], "seed": seed}), number)
        trial = study.ask(to_distributions(space))
        study.tell(trial, sum(math.log(v) if v > 0 else v for v in trial.params.values()))
    return study.trials


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_seed_and_a_number_give_the_same_point(kind):
    first, again = propose(kind, SPACE, 9), propose(kind, SPACE, 9)
    assert first == again
    points = first[:3] if kind == "gp" else first  # which repeats points later
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
    count = getattr(samplers.parse(SAMPLERS[kind]), "n_startup_trials", 8)
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


@pytest.mark.parametrize("sign", [1, -1])
def test_a_gaussian_process_learns_where_runs_diverge(sign):
    """Its three random trials diverge; Optuna's own, to which the first that trains is no better, stays at that."""
    study = optuna.create_study(direction="minimize" if sign == 1 else "maximize")
    for number in range(12):
        study.sampler = build_sampler(samplers["gp"](n_startup_trials=3), number)
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


def test_what_a_grid_can_search():
    grid = samplers["grid"]()
    assert (
        grid.validate({"norm": ["pre"], "seed": Range(low=1, high=3), "norm.alpha": Range(low=0.0, high=1.0, num=3)})
        == []
    )
    assert [p.message for p in grid.validate({"seed": Range(low=1, high=3), **SPACE})] == [
        f"{path}: a grid needs a list of values, or num in addition to low and high" for path in SPACE
    ]


# ---------------------------------------------------------------------------------------------------- pruners


@pytest.mark.parametrize(
    ("max_steps", "warmup", "expected"),
    [(300, 30, 100), (10_000, 1000, 3334), (301, 0, 101), (300, 150, 151), (300, 99, 100), (300, 100, 101), (1, 0, 1)],
)
def test_the_first_step(max_steps, warmup, expected):
    """A third of the updates, rounded up, and in any case after the warm-up."""
    assert pruners["median"]().find_first_step(max_steps, warmup) == expected


def pruned_at(kind, max_steps, warmup):
    """The updates at which trials that are worse than 30 good ones are pruned."""
    study = optuna.create_study(pruner=build_pruner(pruners[kind](), max_steps, warmup))
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


@pytest.mark.parametrize(("warmup", "first"), [(3, 10), (14, 15)])
def test_bad_trials_are_pruned_from_the_first_step_on(warmup, first):
    found = pruned_at("median", 30, warmup)
    assert len(found) >= 5
    assert min(found) == first


# ---------------------------------------------------------------------------------------------------- both


def test_arguments_reach_optuna():
    assert build_sampler(samplers["tpe"](n_startup_trials=3), 0)._n_startup_trials == 3
    assert build_sampler(samplers["gp"](n_startup_trials=3), 0)._n_startup_trials == 3
    pruner = build_pruner(pruners["median"](), 300, 30)
    assert (pruner._n_warmup_steps, pruner._n_startup_trials) == (100, 4)


@pytest.mark.parametrize(
    ("sampler", "pruner", "told"), [("gp", "median", True), ("gp", "none", False), ("tpe", "median", False)]
)
def test_a_plan_says_that_a_sampler_learns_nothing_from_pruned_trials(tiny_settings, sampler, pruner, told):
    search = {"optimizer.lr": {"low": 3e-4, "high": 3e-2, "log": True}, "optimizer.weight_decay": [0.0, 0.1]}
    tree = {"name": "planned", "experiment": tiny_settings, "search": search, "sampler": sampler, "pruner": pruner}
    text = outline(Sweep.from_tree(tree))
    assert f"sampler {sampler}, pruner {pruner}" in text
    assert ("does not learn from pruned trials" in text) == told
