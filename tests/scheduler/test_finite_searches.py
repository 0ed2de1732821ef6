"""Searches with few points: each is trained once, whoever proposes it and however often the sweep is interrupted."""

import math

import optuna
import pytest
from run_table import counts
from scheduler.queues import open_queue
from sweeps.searchers import SAMPLERS

from ablate.config.errors import ConfigError
from ablate.scheduler.dry_run import plan
from ablate.scheduler.optuna_private import open_trial
from ablate.scheduler.storage import read_generation
from ablate.sweeps.search.space import Range, count_points, replace_repeated
from ablate.sweeps.spec.sweep import Sweep
from benchmarks.simulation.sweeps import simulate

RATES = [1e-3, 3e-3]
ARMS = {"pre": {"norm": "pre"}, "mix": {"norm": "mix", "search": {"norm.alpha": [0.34, 0.5]}}}


def sweep(**parts):
    return Sweep.from_tree({"name": "few", "arms": ARMS, "search": {"optimizer.lr": RATES}, **parts})


def record_calls(calls):
    def objective(arm, params, seed):
        calls.append((arm, *(round(value, 9) for value in params.values()), seed))
        return math.inf if len(calls) % 3 == 0 else 2.0 + params["optimizer.lr"]  # a point that diverged is tried

    return objective


@pytest.mark.parametrize("kind", SAMPLERS)
def test_each_point_is_trained_once_by_every_sampler_also_by_a_sweep_that_is_continued(kind):
    space = {"optimizer.lr": [0.1, 0.2, 0.3], "trainer.max_steps": {"low": 5, "high": 6}}
    calls, storage = [], optuna.storages.InMemoryStorage()
    spec = sweep(arms={}, search=space, sampler=SAMPLERS[kind], budget={"trials": 9})
    for trials in (2, 1, None):  # of each of three commands
        record = simulate(spec, record_calls(calls), storage, trials=trials)
    assert spec.trials("all") == record.target() == counts(record)["completed"] + counts(record)["diverged"] == 6
    assert sorted(calls) == [("all", rate, steps, 0) for rate in (0.1, 0.2, 0.3) for steps in (5, 6)]


def test_arms_with_two_and_four_points_are_searched_whole_and_the_plan_says_so(store, tiny_settings):
    spec = sweep(experiment=tiny_settings, budget={"trials": 6}, confirm={"seeds": 2})
    assert {arm: spec.trials(arm) for arm in spec.all_arms} == {"pre": 2, "mix": 4}
    text = plan(spec, 1, None)
    assert "arm pre: 2 trials of 12 updates" in text
    assert "searches optimizer.lr [0.001, 0.003]: 2 points, fewer than the budget of 6 trials; each is trained" in text
    assert "trials: 2 for pre and 4 for mix" in text
    assert "the best 3 or fewer settings of each arm" in text
    assert "to do: 20 trials" in text  # 6 of the search, 2 seeds of 5 candidates, 2 fresh seeds of 2 arms
    assert " points" not in plan(
        sweep(experiment=tiny_settings, search={"optimizer.lr": [0.1, 0.2, 0.3]}, arms={}, sampler="grid"), 1, None
    )


def test_a_failed_point_is_tried_again_and_no_other_takes_its_place(store):
    spec, storage = sweep(arms={}, sampler="random", budget={"trials": 6}), optuna.storages.InMemoryStorage()
    queue = open_queue(storage, spec)
    first, second = queue.take(), queue.take()  # two workers
    assert {first.params["optimizer.lr"], second.params["optimizer.lr"]} == {*RATES}
    first.record_failure("it breaks")
    assert queue.take() is None
    assert queue.begin_session() == 1
    assert queue.take().params == first.params
    assert len(read_generation(storage, "few", 1).search("all")) == 2


def test_what_is_trained_is_what_is_written_down():
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage())
    study.enqueue_trial({"x": 1})
    known = [study.ask({"x": optuna.distributions.CategoricalDistribution((1, 2))})]
    begun = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING)
    trial_id = study._storage.create_new_trial(study._study_id, begun)
    distributions = {"x": optuna.distributions.CategoricalDistribution((1, 2))}
    taken = []

    def choose(point, free, others):
        taken.extend([point, free, others])
        return {"x": 3 - point["x"]}

    trial = open_trial(study, trial_id, distributions, study.get_trials(), choose)
    assert taken[1:] == [["x"], [known[0].params]]
    assert trial.params == study.trials[1].params == {"x": 3 - taken[0]["x"]}


@pytest.mark.parametrize(
    ("space", "count"),
    [
        ({"a": [1, 2], "b": ["x", "y", "z"]}, 6),
        ({"a": Range(low=1, high=64, log=True)}, 64),
        ({"a": Range(low=1, high=8), "b": [True]}, 8),
        ({"a": Range(low=1, high=9, num=3)}, 9),  # num is for the grid alone
        ({"a": [1, 2], "b": Range(low=0.0, high=1.0)}, None),
    ],
)
def test_the_points_of_a_space(space, count):
    assert count_points(space) == count


def test_a_repeated_point_is_replaced_by_one_with_the_same_fixed_values():
    space = {"a": ["x", "y", None], "b": Range(low=0, high=3)}
    taken = [{"a": "x", "b": i} for i in range(4)] + [{"a": "y", "b": 3}]
    point = {"a": "y", "b": 3}
    found = {(new := replace_repeated(point, ["b"], taken, space, seed))["b"] for seed in range(20)}
    assert (new["a"], found) == ("y", {0, 1, 2})
    assert replace_repeated({"a": "x", "b": 1}, ["b"], taken, space, 0) == {"a": "x", "b": 1}  # no other is left
    assert replace_repeated({"a": "y", "b": 1}, ["a", "b"], taken, space, 0) == {"a": "y", "b": 1}
    wide = {**space, "b": Range(low=0.0, high=3.0)}
    assert replace_repeated(taken[0], ["a", "b"], taken, wide, 0) == taken[0]


@pytest.mark.parametrize("values", [[1e-3, 3e-3, 1e-3], [1, 1.0], [True, 1]])
def test_a_list_that_has_a_value_twice_is_refused(values):
    with pytest.raises(ConfigError, match=r"search\.optimizer\.lr: has the same value twice"):
        sweep(search={"optimizer.lr": values})


def test_a_fixed_point_that_is_there_twice_is_refused():
    wide = {"optimizer.lr": {"low": 1e-4, "high": 1e-2}}
    point = {"optimizer.lr": 1e-3}
    with pytest.raises(ConfigError, match=r"fixed\.1: is there twice for all"):
        sweep(arms={}, search=wide, fixed=[point, point])
    sweep(arms={}, search={**wide, "optimizer.weight_decay": [0.0, 0.1]}, fixed=[point, point])  # the rest is drawn
