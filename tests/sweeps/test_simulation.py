"""What sweeps conclude, against what is true: hundreds of simulated sweeps, held to what the engine does."""

import math
import random

import optuna
import pytest

from ablate.reports.confirmation import compare_arms
from ablate.sweeps.search.pruners import pruners
from ablate.sweeps.search.samplers import samplers
from ablate.sweeps.simulation import Valley, replay, simulate
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.storage import read_trial
from ablate.training.procedures import Result
from ablate.verdict.confirmation import compare

ARMS = {"pre": {"norm": "pre"}, "post": {"norm": "post"}}
RATES = {"low": 3e-4, "high": 3e-2, "log": True}
EQUAL = {"pre": 2.0, "post": 2.0}


def sweep(**parts):
    return Sweep.from_tree({"name": "simulated", "arms": ARMS, "search": {"optimizer.lr": RATES}, **parts})


def run(spec, valley=None, **more):
    return simulate(spec, valley or Valley(EQUAL), optuna.storages.InMemoryStorage(), **more)


FIVE = {"optimizer.lr": [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]}
SPECS = {
    "grid": sweep(search=FIVE, sampler="grid", confirm={"seeds": 5}, baseline="pre"),
    "small grid": sweep(search={"optimizer.lr": [1e-3, 3e-3, 1e-2]}, sampler="grid", confirm={"seeds": 5}),
    "random": sweep(sampler="random", budget={"trials": 10}, confirm={"seeds": 5}),
}


@pytest.fixture(scope="module")
def points():
    """What each sweep of SPECS tries: arm -> params; they do not depend on what it finds."""
    return {
        name: {arm: [t.params for t in trials] for arm, trials in run(spec).trials.items()}
        for name, spec in SPECS.items()
    }


def conclude(name, valley, points):
    """What is said of each arm of one sweep, by the statistics of a real one."""
    return compare(replay(SPECS[name], valley, points[name]), "pre", 5)


@pytest.mark.parametrize("name", SPECS)
def test_the_engine_concludes_what_the_replay_does(name, points):
    for entropy in range(6):
        valley = Valley({"pre": 2.0, "post": 2.0 + 0.01 * entropy}, own=0.03, entropy=entropy)
        record = run(SPECS[name], valley)
        assert {arm: [t.params for t in trials] for arm, trials in record.trials.items()} == points[name]
        assert compare_arms(record) == conclude(name, valley, points)
        for arm in ARMS:
            best = record.best(arm)
            assert best.value == valley(arm, best.params, SPECS[name].base(arm).seed)


@pytest.fixture(scope="module")
def concluded(points):
    """(what the report says of each arm, the truth) of 500 sweeps between two arms that do not differ."""
    pairs = []
    for entropy in range(500):
        valley = Valley(EQUAL, entropy=entropy)
        said = conclude("grid", valley, points)
        pairs.append((said, {arm: valley.mean(arm, c.params) for arm, c in said.items()}))
    return pairs


def covers(estimate, truth):
    low, high = estimate.interval
    return low <= truth <= high


def test_the_95_percent_intervals_hold_the_truth_in_95_of_100_sweeps(concluded):
    means = [covers(said[arm].estimate, truth[arm]) for said, truth in concluded for arm in truth]
    pairs = [covers(said["post"].difference.estimate, truth["post"] - truth["pre"]) for said, truth in concluded]
    assert 0.92 <= sum(means) / len(means) <= 0.98
    assert 0.92 <= sum(pairs) / len(pairs) <= 0.98


def test_two_arms_that_do_not_differ_are_told_apart_in_at_most_6_of_100_sweeps(concluded):
    wrong = [said["post"].difference.shown for said, _ in concluded]
    assert 0.02 <= sum(wrong) / len(wrong) <= 0.06  # 5 is what is promised; none at all would be a test that is deaf


def test_two_arms_that_differ_are_told_apart_with_the_right_sign_and_size(points):
    valleys = [Valley({"pre": 2.0, "post": 2.05}, entropy=entropy) for entropy in range(40)]
    differences = [conclude("small grid", valley, points)["post"].difference for valley in valleys]
    assert sum(d.shown and d.estimate.mean > 0 for d in differences) >= 38
    assert math.fsum(d.estimate.mean for d in differences) / 40 == pytest.approx(0.05, abs=0.01)


def test_the_best_of_a_search_flatters_and_the_confirmation_does_not(points):
    """Why a search alone is never the result."""
    searched, confirmed = [], []
    for entropy in range(60):
        valley = Valley(EQUAL, own=0.05, entropy=entropy)
        pre = conclude("random", valley, points)["pre"]
        truth = valley.mean("pre", pre.params)
        searched.append(valley("pre", pre.params, SPECS["random"].base("pre").seed) - truth)
        confirmed.append(pre.estimate.mean - truth)
    assert sum(searched) / 60 < -0.02
    assert abs(sum(confirmed) / 60) < 0.01


@pytest.mark.parametrize("kind", samplers)
def test_a_sweep_that_is_stopped_at_any_trial_proposes_what_an_undisturbed_one_would(kind):
    space = {"optimizer.lr": RATES, "optimizer.weight_decay": {"low": 0.0, "high": 0.3}}
    space = {path: {**entry, "num": 3} for path, entry in space.items()} if kind == "grid" else space
    spec = sweep(search=space, sampler=kind, budget={"trials": 9}, confirm={"seeds": 2})
    plain = run(spec)
    storage = optuna.storages.InMemoryStorage()
    for _ in range(100):
        broken = simulate(spec, Valley(EQUAL), storage, trials=1)
        if broken.confirmed and all(len(trials) == 2 for trials in broken.confirmed.values()):
            break
    assert broken.trials == plain.trials
    assert broken.confirmed == plain.confirmed


def test_a_stopped_sweep_has_compared_the_arms_evenly():
    spec = sweep(sampler="random", budget={"trials": 6}, confirm={"seeds": 3})
    for trials in range(1, 18):
        record = run(spec, trials=trials)
        counts = [len(t) for t in record.trials.values()]
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == min(trials, 12)
        assert sum(map(len, record.confirmed.values())) == max(0, trials - 12)


def test_the_search_starts_from_the_fixed_points():
    arms = {"pre": {"norm": "pre"}, "mix": {"norm": "mix", "search": {"norm.alpha": [0.2, 0.4]}}}
    arms["mix"]["fixed"] = [{"norm.alpha": 0.4, "optimizer.lr": 2e-3}]
    spec = sweep(arms=arms, fixed=[{"optimizer.lr": 1e-3}], sampler="random", budget={"trials": 4})
    record = run(spec, Valley({"pre": 2.0, "mix": 2.0}))
    assert record.trials["pre"][0].params == {"optimizer.lr": 1e-3}
    first, second, third, _ = (t.params for t in record.trials["mix"])
    assert first == {"norm.alpha": 0.4, "optimizer.lr": 2e-3}
    assert second["optimizer.lr"] == 1e-3
    assert third["optimizer.lr"] not in (1e-3, 2e-3)
    assert len({t.params["optimizer.lr"] for t in record.trials["pre"]}) == 4


@pytest.mark.parametrize("kind", [kind for kind in pruners if kind != "none"])
def test_pruning_leaves_every_arm_a_trial_that_ends(kind):
    """Also where each trial is worse than the one before: what is compared is a trial's arm alone, and not all of it
    is removed."""
    spec = sweep(budget={"trials": 6}, pruner=kind, sampler="random", experiment={"trainer.max_steps": 90})
    for direction in (1, -1):
        for arm in arms_of(spec):
            statuses = []
            for number in range(6):
                trial = arm.ask()
                for step in range(10, 91, 10):
                    trial.report(2.0 + direction * 0.1 * number + (100 if arm.arm == "post" else 0), step)
                    pruned = arm.should_prune(trial)
                    assert not (pruned and step < 30)
                    if pruned:
                        break
                statuses.append("pruned" if pruned else "completed")
                arm.study.tell(trial.number, None if pruned else 2.0, state=None if not pruned else PRUNED)
            assert statuses[0] == "completed"
            assert [read_trial(t, arm.arm).status for t in arm.study.trials] == statuses
            if direction == 1 and kind != "hyperband":
                assert "pruned" in statuses


PRUNED = optuna.trial.TrialState.PRUNED


def arms_of(spec):
    from ablate.sweeps.arms import ArmTrials
    from ablate.sweeps.storage import create_study

    storage = optuna.storages.InMemoryStorage()
    return [ArmTrials(create_study(storage, arm, spec), spec, arm, "") for arm in spec.all_arms]


def pruned_sweep(spec, interrupts=None):
    """(status, params, value, curve) of each trial of both arms, with a validation every 10 of 90 updates. Before each
    new validation the trial is interrupted where the generator `interrupts` says so, and goes on from there."""
    for arm in (arms := arms_of(spec)):
        while arm.tally().open:
            trial = arm.ask()
            known = arm._read_frozen(trial.number).intermediate_values
            lr = trial.params["optimizer.lr"]
            status, value = "completed", None
            for step in range(10, 91, 10):
                if step in known:
                    continue
                if interrupts is not None and interrupts.random() < 0.3:
                    arm.requeue(trial, "stopped")
                    break
                value = 2 + math.log10(lr / 3e-3) ** 2 * (1 - 5 / step) + 10 / step
                trial.report(value, step)
                if arm.should_prune(trial):
                    status = "pruned"
                    break
            else:
                step = 90
            if arm.tally().running:
                arm.record_result(trial, Result(status, {"val/loss": value}, step, None, 0.0))
    return [[(r.status, r.params, r.value, r.curve) for r in arm.read_trials()] for arm in arms]


@pytest.mark.parametrize("kind", pruners)
def test_pruning_is_alike_for_arms_and_for_interrupted_trials(kind):
    spec = sweep(budget={"trials": 20}, pruner=kind, sampler="random", experiment={"trainer.max_steps": 90})
    pre, post = pruned_sweep(spec)
    assert pre == post
    assert ("pruned" in {status for status, *_ in pre}) == (kind != "none")
    for seed in range(3):
        assert pruned_sweep(spec, random.Random(seed)) == [pre, post]
