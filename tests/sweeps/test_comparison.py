"""What a record claims, and which runs it still needs."""

import optuna
import pytest
from run_table import by_arm, put

from ablate.sweeps.comparison import (
    compare_arms,
    compare_record,
    cross_params,
    find_due_looks,
    list_candidates,
    plan_record,
    plan_round,
)
from ablate.sweeps.runs import Run, Runs
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.comparison import FreshOutcomes
from ablate.verdict.looks import Looks
from ablate.verdict.outcomes import Outcome
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import simulate

FIVE = {"optimizer.lr": [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]}
ARMS = {"pre": {"norm": "pre"}, "post": {"norm": "post"}}
VALLEY = Valley({"pre": 2.0, "post": 2.1}, own=0.002)


def sweep(seeds=3, **parts):
    confirm = {"seeds": seeds, **({"effect": 0.02} if isinstance(seeds, dict) else {}), **parts.pop("confirm", {})}
    return Sweep.from_tree({"name": "t", "arms": ARMS, "search": FIVE, "sampler": "grid", "confirm": confirm, **parts})


def trial(number, value, lr=1e-3, status="completed"):
    return Run("pre", number, status, {"optimizer.lr": lr}, value, {}, {}, 1, 1.0, None, "")


@pytest.fixture
def storage():
    return optuna.storages.InMemoryStorage()


def test_candidates_are_the_best_settings_each_once():
    trials = [trial(0, 3.0), trial(1, 2.0, 3e-3), trial(2, 2.0, 3e-3), trial(3, 1.0, 1e-2), trial(4, None, 3e-4)]
    assert [t.number for t, _ in list_candidates(sweep(), Runs(tuple(trials)))] == [3, 1, 0]
    assert [t.number for t, _ in list_candidates(sweep(confirm={"candidates": 2}), Runs(tuple(trials)))] == [3, 1]
    most = sweep(objective={"metric": "val/accuracy", "direction": "maximize"})
    assert [t.number for t, _ in list_candidates(most, Runs(tuple(trials)))] == [0, 1, 3]
    assert list_candidates(sweep(), Runs(tuple(trials[4:]))) == []


def test_the_loser_takes_the_shared_values_of_the_winner_alone():
    loser = {"optimizer.lr": 1e-3, "norm.alpha": 0.5}
    assert cross_params(sweep(), loser, {"optimizer.lr": 3e-3, "other": 1}) == {"optimizer.lr": 3e-3, "norm.alpha": 0.5}


def fresh(values, looks=None, lr=1e-3, **more):
    outcomes = {seed: Outcome("trained", value) for seed, value in enumerate(values, 1)}
    return FreshOutcomes(outcomes, {"optimizer.lr": lr}, looks and Looks(tuple(looks), looks[-1]), **more)


def plan(spec, arms):
    found = plan_round(spec, arms, list(arms), compare_arms(spec, arms))
    return found.seeds, found.crossed


NOISE = (0.0, 0.02, -0.02, 0.01, -0.01, 0.015)


@pytest.mark.parametrize(
    ("seeds", "pre", "post", "expected"),
    [
        (3, fresh([]), fresh([]), {"pre": 3, "post": 3}),
        (5, fresh([2.0] * 3, [3]), fresh([2.1] * 3, [3]), {"pre": 5, "post": 5}),  # raised by hand
        (3, fresh([2.0] * 5, [5]), fresh([2.1] * 5, [5]), {"pre": 5, "post": 5}),  # lowered: what was run stays
        ({"min": 3, "max": 6}, fresh([]), fresh([]), {"pre": 3, "post": 3}),
        ({"min": 3, "max": 6}, fresh([0.0] * 3, [3]), fresh(NOISE[:3], [3]), {"pre": 4, "post": 4}),
        ({"min": 3, "max": 6}, fresh([0.0] * 6, [3, 6]), fresh(NOISE, [3, 6]), {"pre": 6, "post": 6}),
        ({"min": 3, "max": 6}, fresh([0.0] * 3, [3]), fresh([1.0, 1.001, 1.002], [3]), {"pre": 3, "post": 3}),  # worse
    ],
)
def test_the_seeds_of_the_next_round(seeds, pre, post, expected):
    assert plan(sweep(seeds), {"pre": pre, "post": post}) == (expected, {})


def test_decided_pairs_get_no_more_seeds_and_the_baseline_goes_on():
    spec = sweep({"min": 3, "max": 6}, arms={**ARMS, "mix": {"norm": "mix"}})
    arms = {"pre": fresh([0.0] * 3, [3]), "post": fresh([1.0, 1.001, 1.002], [3]), "mix": fresh(NOISE[:3], [3])}
    assert plan(spec, arms) == ({"pre": 4, "post": 3, "mix": 4}, {})


def test_crossed_runs_come_before_further_seeds():
    for seeds in (3, {"min": 3, "max": 6}):
        worse = {"pre": fresh([0.0] * 3, [3]), "post": fresh([1.0, 1.001, 1.002], [3], lr=1e-2)}
        assert plan(sweep(seeds), worse) == ({"pre": 3, "post": 3}, {("post", "pre"): 3})
        better = {"pre": fresh([2.0] * 3, [3]), "post": fresh([1.0, 1.001, 1.002], [3], lr=1e-2)}
        assert plan(sweep(seeds), better) == ({"pre": 3, "post": 3}, {("pre", "post"): 3})


def test_a_look_is_due_when_both_have_all_seeds_of_the_round():
    spec = sweep(3)
    arms = {"pre": fresh([1.0] * 3), "post": fresh([1.0] * 2)}
    found = plan_round(spec, arms, list(arms), {})
    assert find_due_looks(spec, arms, found) == {"pre": Looks((3,), 3)}
    arms["post"] = fresh([1.0] * 3)
    assert find_due_looks(spec, arms, found) == dict.fromkeys(arms, Looks((3,), 3))
    gap = {seed: outcome for seed, outcome in fresh([1.0] * 5).outcomes.items() if seed != 2}
    assert find_due_looks(spec, {**arms, "post": FreshOutcomes(gap)}, found) == {"pre": Looks((3,), 3)}
    more = {"pre": fresh([1.0] * 5), "post": fresh([1.0] * 4)}  # five were wanted, and some of them run
    assert find_due_looks(spec, more, found) == {"pre": Looks((5,), 5), "post": Looks((4,), 4)}
    without = {"pre": FreshOutcomes({}, found=False), "post": fresh([1.0] * 3)}
    assert find_due_looks(spec, without, plan_round(spec, without, ["post"], {})) == {"post": Looks((3,), 3)}


# ------------------------------------------------------------------ stores


def test_looks_are_written_down_and_count_whatever_is_changed_by_hand(storage):
    equal = Valley({"pre": 2.0, "post": 2.0}, own=0.03)
    assert simulate(sweep(3), equal, storage).looks["post"] == Looks((3,), 3)
    assert simulate(sweep(3), equal, storage).looks["post"] == Looks((3,), 3)  # the same command again
    assert simulate(sweep(5), equal, storage).looks["post"] == Looks((3, 5), 3)
    lowered = simulate(sweep(4), equal, storage)
    assert lowered.looks["post"] == Looks((3, 5), 3)
    assert len(compare_record(lowered)["post"].outcomes) == 5
    added = simulate(sweep({"min": 3, "max": 7}, confirm={"effect": 1e-9}), equal, storage)
    assert added.looks["post"] == added.looks["pre"] == Looks((3, 5, 6, 7), 3)


def test_one_seed_after_the_other_by_hand_is_as_many_looks(storage):
    for seeds in range(2, 7):
        record = simulate(sweep(seeds), VALLEY, storage)
    assert record.looks["post"] == Looks((2, 3, 4, 5, 6), 2)
    levels = compare_record(record)["post"].versus.level
    assert levels < compare_record(simulate(sweep(6), VALLEY, optuna.storages.InMemoryStorage()))["post"].versus.level


def test_nothing_is_said_before_there_are_fresh_seeds(storage):
    assert compare_record(simulate(sweep(0), VALLEY, storage)) == {}
    begun = simulate(sweep(3), VALLEY, optuna.storages.InMemoryStorage(), trials=12)
    assert compare_record(begun) == {}
    assert plan_record(begun).seeds == {}
    done = simulate(sweep(3), VALLEY, optuna.storages.InMemoryStorage())
    assert plan_record(done).seeds == {"pre": 3, "post": 3}


def test_arms_without_settings_are_told_once_their_search_has_ended():
    def never(arm, params, seed):
        return float("inf") if arm == "post" else VALLEY(arm, params, seed)

    record = simulate(sweep(3), never, optuna.storages.InMemoryStorage())
    assert compare_record(record)["post"].kind == "could not be trained"
    short = put(record, trials={**by_arm(record), "post": record.search("post")[:2]})
    assert compare_record(short)["post"].kind == "figures"
    nothing = simulate(sweep(3), lambda *_: float("inf"), optuna.storages.InMemoryStorage())
    assert compare_record(nothing)["post"].kind == "could not be trained"


def test_the_rest_of_the_file_belongs_to_the_family(storage):
    alone = compare_record(simulate(sweep(3), VALLEY, storage))["post"]
    shared = compare_record(simulate(sweep(3, family=4), VALLEY, storage))["post"]  # an old store is not refused
    assert (alone.family, shared.family) == (1, 5)
    assert shared.versus.level < alone.versus.level
