"""What a record claims, and which runs it still needs."""

from dataclasses import replace

import optuna
import pytest
from run_table import by_arm, put

from ablate.sweeps.comparison import (
    Round,
    collect_outcomes,
    compare_record,
    find_due_looks,
    list_candidates,
    plan_record,
)
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH, SEARCH, Run, Runs
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


def fresh(values, looks=None):
    return {seed: Outcome("trained", value) for seed, value in enumerate(values, 1)}, looks


def build(spec, arms):
    """A record of arms with outcomes on fresh seeds, and looks at them; one trial was run of each."""
    rows = [replace(trial(0, 2.0), arm=arm, stage=SEARCH) for arm in arms]
    for arm, (outcomes, _) in arms.items():
        rows += [replace(trial(0, one.value), arm=arm, stage=FRESH, seed=seed) for seed, one in outcomes.items()]
    looks = {arm: Looks(tuple(own), own[-1]) for arm, (_, own) in arms.items() if own}
    return SweepRecord("t", 1, spec, Runs(tuple(rows)), chosen=dict.fromkeys(arms, 0), looks=looks)


def plan(spec, arms):
    return plan_record(build(spec, arms)).seeds


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
    assert plan(sweep(seeds), {"pre": pre, "post": post}) == expected


def test_decided_pairs_get_no_more_seeds_and_the_baseline_goes_on():
    spec = sweep({"min": 3, "max": 6}, arms={**ARMS, "mix": {"norm": "mix"}})
    arms = {"pre": fresh([0.0] * 3, [3]), "post": fresh([1.0, 1.001, 1.002], [3]), "mix": fresh(NOISE[:3], [3])}
    assert plan(spec, arms) == {"pre": 4, "post": 3, "mix": 4}


def test_a_challenge_comes_before_further_seeds():
    """In the first round of a search of one point nothing is known of others, so the loser tries some."""
    for seeds in (3, {"min": 3, "max": 6}):
        lost = {"pre": fresh([0.0] * 3, [3]), "post": fresh([1.0, 1.001, 1.002], [3])}
        found = plan_record(build(sweep(seeds, challenge={"trials": 2}), lost))
        assert found.seeds == {"pre": 3, "post": 3}
        ((arm, (number, params)),) = found.tries.items()
        assert (arm, number) == ("post", 1)
        assert params["optimizer.lr"] != 1e-3
    assert plan_record(build(sweep(3), {"pre": fresh([0.0] * 3, [3]), "post": fresh(NOISE[:3], [3])})).tries == {}


def test_a_look_is_due_when_both_have_all_seeds_of_the_round():
    spec, found = sweep(3), Round({"pre": 3, "post": 3})

    def look(wanted=found, **arms):
        return find_due_looks(spec, collect_outcomes(build(spec, arms)), wanted)

    assert look(pre=fresh([1.0] * 3), post=fresh([1.0] * 2)) == {"pre": Looks((3,), 3)}
    assert look(pre=fresh([1.0] * 3), post=fresh([1.0] * 3)) == dict.fromkeys(("pre", "post"), Looks((3,), 3))
    gap = {seed: outcome for seed, outcome in fresh([1.0] * 5)[0].items() if seed != 2}
    assert look(pre=fresh([1.0] * 3), post=(gap, None)) == {"pre": Looks((3,), 3)}
    # five were wanted, and some of them run
    more = {"pre": Looks((5,), 5), "post": Looks((4,), 4)}
    assert look(pre=fresh([1.0] * 5), post=fresh([1.0] * 4)) == more
    without = {"pre": FreshOutcomes({}, found=False), "post": FreshOutcomes(fresh([1.0] * 3)[0])}
    assert find_due_looks(spec, without, Round({"post": 3})) == {"post": Looks((3,), 3)}


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
