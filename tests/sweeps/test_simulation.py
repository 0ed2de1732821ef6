"""What sweeps conclude, against what is true: hundreds of simulated sweeps, held to what the engine does."""

import math
import random
from dataclasses import dataclass, replace

import optuna
import pytest
from run_table import by_arm
from scheduler.queues import open_queue, read
from sweeps.searchers import PRUNERS, SAMPLERS

from ablate.reports.verdict_sections import explain_comparison
from ablate.sweeps.comparison import compare_record, list_candidates, list_earlier_pairs
from ablate.sweeps.runs import CHALLENGE, EXTENSION, FRESH, SEARCH, SELECTION
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.stages import find_kept
from ablate.training.procedures import Result
from benchmarks.simulation.losses import Valley, draw_uniform
from benchmarks.simulation.sweeps import replay, simulate

ARMS = {"pre": {"norm": "pre"}, "post": {"norm": "post"}}
THREE = {**ARMS, "mix": {"norm": "mix"}}
RATES = {"low": 3e-4, "high": 3e-2, "log": True}
EQUAL = {"pre": 2.0, "post": 2.0}
TRIVIAL = 3.3
SEQUENTIAL = {"seeds": {"min": 3, "max": 9}, "effect": 0.03}


def sweep(**parts):
    return Sweep.from_tree({"name": "simulated", "arms": ARMS, "search": {"optimizer.lr": RATES}, **parts})


def run(spec, objective=None, **more):
    return simulate(spec, objective or Valley(EQUAL), optuna.storages.InMemoryStorage(), **more)


@dataclass(frozen=True)
class Failing:
    """A valley in which an arm diverges in a share of its trainings and gets stuck in another."""

    valley: Valley
    diverging: dict
    stuck: dict

    def __call__(self, arm, params, seed):
        drawn = draw_uniform(self.valley.entropy, "fails", arm, params["optimizer.lr"], seed)[0]
        if drawn < self.diverging.get(arm, 0):
            return math.inf
        if drawn < self.diverging.get(arm, 0) + self.stuck.get(arm, 0):
            return TRIVIAL - 0.01
        return self.valley(arm, params, seed)


FIVE = {"optimizer.lr": [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]}
SPECS = {
    "grid": sweep(search=FIVE, sampler="grid", confirm={"seeds": 5}, baseline="pre"),
    "three": sweep(
        search=FIVE, sampler="grid", confirm={"seeds": 4}, arms=THREE, baseline="post"
    ),
    "alone": sweep(search=FIVE, sampler="grid", confirm={"seeds": 3, "candidates": 1}, arms={}),
    "two seeds": sweep(search=FIVE, sampler="grid", confirm={"seeds": 2}),
    "small grid": sweep(search={"optimizer.lr": [1e-3, 3e-3, 1e-2]}, sampler="grid", confirm={"seeds": 5}),
    "random": sweep(sampler="random", budget={"trials": 6}, confirm={"seeds": 5}),
    "sequential": sweep(sampler="random", budget={"trials": 6}, confirm=SEQUENTIAL, arms=THREE),
    "accuracy": sweep(
        search=FIVE, sampler="grid", confirm={"seeds": 5}, experiment={"model": "vit-digits", "data": "digits"},
        objective={"metric": "val/accuracy", "direction": "maximize"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def points():
    """What each sweep of SPECS tries: arm -> params; they do not depend on what it finds."""
    found = {}
    for name, spec in SPECS.items():
        searched = run(spec.model_copy(update={"confirm": type(spec.confirm)()}), lambda arm, params, seed: 2.0)
        found[name] = {arm: [t.params for t in trials] for arm, trials in by_arm(searched).items()}
    return found


def describe(compared):
    """What differs between two conclusions, for the message of a failed test."""
    return {arm: (c.kind, c.looks, len(c.outcomes), c.challenge) for arm, c in compared.items()}


@pytest.mark.parametrize("name", [name for name in SPECS if name != "accuracy"])
@pytest.mark.parametrize("failing", ["none", "some", "all"])
def test_the_engine_concludes_what_the_replay_does(name, failing, points):
    spec = SPECS[name]
    rates = {"none": ({}, {}), "some": ({"post": 0.3}, {"pre": 0.2, "mix": 0.2}), "all": ({"post": 1.0}, {"mix": 1.0})}
    for entropy in range(2):
        floors = {"pre": 2.0, "post": 2.0 + 0.04 * entropy, "mix": 1.97, "all": 2.0}
        objective = Failing(Valley(floors, own=0.02, entropy=entropy), *rates[failing])
        record = run(spec, objective, trivial_loss=TRIVIAL)
        concluded = replay(spec, objective, points[name], trivial_loss=TRIVIAL)
        assert {arm: [t.params for t in trials] for arm, trials in by_arm(record).items()} == points[name]
        assert describe(compare_record(record)) == describe(concluded)
        assert compare_record(record) == concluded
        assert ("post" in record.chosen) == (failing != "all" and "post" in spec.all_arms)
        for arm, trial in ((arm, record.settled(arm)) for arm in record.chosen):
            assert trial.value == objective(arm, trial.params, trial.seed)
            runs = record.fresh(arm)
            assert [r.seed for r in runs] == spec.fresh_seeds(len(runs))
            used = {r.seed for r in record.runs.select(arm, SELECTION)}
            assert not used or {*spec.selection_seeds()} <= used <= {*spec.selection_seeds(4)}


def test_a_search_that_learns_is_replayed_from_what_it_tried():
    """TPE's points follow from the tuning seed alone, whatever is run after the search."""
    learning = {"sampler": {"kind": "tpe", "n_startup_trials": 2}, "budget": {"trials": 5}}
    spec, alone = sweep(**learning, confirm={"seeds": 4}), sweep(**learning)
    for entropy in range(2):
        objective = Valley(EQUAL, own=0.02, entropy=entropy)
        searched = {arm: [t.params for t in trials] for arm, trials in by_arm(run(alone, objective)).items()}
        assert compare_record(run(spec, objective)) == replay(spec, objective, searched)


def test_shares_of_few_images_are_compared_as_shares(points):
    """Equal differences on every seed would have no noise; an accuracy over 90 images has that of its rounding."""
    spec = SPECS["accuracy"]

    def objective(arm, params, seed):
        return round(90 * (0.8 + (arm == "post") / 90)) / 90

    record = run(spec, objective, validation_items=90)
    compared = compare_record(record)
    assert compared == replay(spec, objective, points["accuracy"], validation_items=90)
    assert compared["post"].kind == "undecided" or compared["post"].difference.half_width > 0
    assert compare_record(run(spec, objective))["post"].kind == "undecided"


def test_a_sweep_says_what_it_is_to_say():
    """One sweep of each kind of ending."""
    spec = SPECS["grid"]
    quiet = {"shared": 0.02, "own": 0.002, "curvature": 0.4}

    def kind(floors, diverging=None, stuck=None, parts=None):
        objective = Failing(Valley({**EQUAL, **floors}, **quiet), diverging or {}, stuck or {})
        return compare_record(run(sweep(**parts) if parts else spec, objective, trivial_loss=TRIVIAL))["post"].kind

    assert kind({"post": 1.95}) == "better"
    assert kind({"post": 2.05}) == "worse"
    assert kind({"post": 2.1}, stuck={"post": 1.0}) == "fails on all seeds"
    assert kind({}, stuck={"pre": 1.0}) == "baseline fails on all seeds"
    assert kind({}, diverging={"post": 1.0}) == "could not be trained"
    effect = {"search": FIVE, "sampler": "grid", "confirm": {"seeds": 5, "effect": 0.05}}
    assert kind({}, parts=effect) == "equivalent"
    assert kind({"post": 1.9}, parts={**effect, "confirm": {"seeds": 2}}) == "figures"


# ------------------------------------------------------------------ many sweeps


def conclude_many(name, points, count, build):
    """(what is said of each arm, the valley) of `count` sweeps; `build(entropy)` gives the objective."""
    said = []
    for entropy in range(count):
        objective = build(entropy)
        said.append((replay(SPECS[name], objective, points[name], trivial_loss=TRIVIAL), objective))
    return said


CLAIMS = (  # that all seeds failed is a fact
    *("better", "worse", "mixed", "fails more often", "fails less often"),
    *("better on most seeds", "worse on most seeds"),
)


SEQUENTIALLY = [("sequential", 60), pytest.param("sequential", 300, marks=pytest.mark.chaos)]


@pytest.mark.parametrize(("name", "count"), [("grid", 300), ("random", 300), *SEQUENTIALLY])
@pytest.mark.parametrize("failing", [0.0, 0.3])
def test_equal_arms_are_told_apart_in_at_most_6_of_100_sweeps(name, count, failing, points):
    """Also where a share of the seeds diverges or gets stuck; a sweep is wrong where it claims anything of any arm."""
    floors, rates = dict.fromkeys(("pre", "post", "mix"), 2.0), dict.fromkeys(("pre", "post", "mix"), failing / 2)
    said = conclude_many(name, points, count, lambda entropy: Failing(Valley(floors, entropy=entropy), rates, rates))
    wrong = [any(c.kind in CLAIMS for c in compared.values()) for compared, _ in said]
    assert sum(wrong) / len(wrong) <= 0.06


def covers(estimate, truth):
    low, high = estimate.interval
    return low <= truth <= high


@pytest.mark.parametrize(("name", "count"), [("grid", 250), *SEQUENTIALLY])
def test_intervals_hold_the_truth_in_95_of_100_sweeps(name, count, points):
    """Over all looks, at the settings that were chosen, given that they trained."""
    floors = {"pre": 2.0, "post": 2.01, "mix": 1.99}
    said = conclude_many(
        name, points, count, lambda entropy: Failing(Valley(floors, entropy=entropy), {"post": 0.1}, {})
    )
    means, pairs = [], []
    for compared, objective in said:
        truth = {arm: objective.valley.mean(arm, c.params) for arm, c in compared.items() if c.params}
        for arm, c in compared.items():
            if arm not in truth:
                continue
            if c.estimate is not None and c.estimate.interval:
                means.append(covers(c.estimate, truth[arm]))
            if c.difference is not None and c.difference.interval:
                base = truth["pre"]
                pairs.append(covers(c.difference, truth[arm] - base))
    assert sum(means) / len(means) >= 0.93
    assert sum(pairs) / len(pairs) >= 0.93


def test_arms_that_differ_are_told_apart_with_the_right_sign_and_size(points):
    floors = {"pre": 2.0, "post": 2.05}
    said = [c["post"] for c, _ in conclude_many("small grid", points, 60, lambda e: Valley(floors, entropy=e))]
    assert sum(c.kind == "worse" for c in said) >= 55
    assert not any(c.kind == "better" for c in said)
    assert math.fsum(c.difference.mean for c in said) / 60 == pytest.approx(0.05, abs=0.01)


def test_the_more_two_arms_differ_the_fewer_seeds_are_run(points):
    seeds = {}
    for gap in (0.0, 0.1):
        floors = {"pre": 2.0, "post": 2.0 + gap, "mix": 2.0 - gap}
        said = conclude_many("sequential", points, 40, lambda e, floors=floors: Valley(floors, entropy=e))
        seeds[gap] = sum(len(c["post"].outcomes) for c, _ in said) / len(said)
        if gap:
            assert sum(c["post"].kind == "worse" and c["mix"].kind == "better" for c, _ in said) >= 36
    assert seeds[0.1] < 6 < seeds[0.0] <= 9


def test_an_arm_that_fails_more_often_never_beats_one_that_does_not(points):
    """It is better by 0.05 when it trains, and diverges on 40 % of the seeds."""
    floors = {"pre": 2.0, "post": 1.95}
    said = conclude_many("grid", points, 200, lambda e: Failing(Valley(floors, entropy=e), {"post": 0.4}, {}))
    better = [c["post"] for c, _ in said if c["post"].kind == "better"]
    assert all(c.versus.failed == 0 for c in better)  # no failure was seen
    assert any(c["post"].kind == "mixed" for c, _ in said)


def test_a_rate_that_one_seed_flatters_is_not_what_an_arm_is_judged_by():
    """Post-LN seems best at a rate at which it is worse, by luck on the seed of the search."""
    spec = SPECS["grid"]

    def objective(arm, params, seed):
        lucky = arm == "post" and params["optimizer.lr"] == 3e-2 and seed == spec.base(arm).seed
        return 1.5 if lucky else Valley(EQUAL, own=0.002)(arm, params, seed)

    record = run(spec, objective)
    assert record.best("post").params == {"optimizer.lr": 3e-2}
    assert record.find_settings("post") == {"optimizer.lr": 3e-3}
    assert compare_record(record)["post"].kind == "undecided"


def test_the_best_of_a_search_flatters_and_fresh_seeds_do_not(points):
    """Why a search alone is never the result."""
    searched, confirmed = [], []
    for compared, valley in conclude_many("random", points, 60, lambda e: Valley(EQUAL, own=0.05, entropy=e)):
        pre = compared["pre"]
        truth = valley.mean("pre", pre.params)
        searched.append(valley("pre", pre.params, SPECS["random"].base("pre").seed) - truth)
        confirmed.append(pre.estimate.mean - truth)
    assert sum(searched) / 60 < -0.01
    assert abs(sum(confirmed) / 60) < 0.01


def test_candidates_over_several_seeds_find_better_settings_than_the_best_of_one(points):
    truths = {}
    for candidates in (1, 3):
        confirm = SPECS["grid"].confirm.model_copy(update={"candidates": candidates})
        spec = SPECS["grid"].model_copy(update={"confirm": confirm})
        valleys = [Valley(EQUAL, own=0.1, entropy=entropy) for entropy in range(150)]
        chosen = [replay(spec, valley, points["grid"])["pre"].params for valley in valleys]
        truths[candidates] = sum(v.mean("pre", p) for v, p in zip(valleys, chosen, strict=True)) / len(valleys)
    assert truths[3] < truths[1]


# ------------------------------------------------------------------ the engine


TWO = {"optimizer.lr": RATES, "optimizer.weight_decay": {"low": 0.0, "high": 0.3}}


def build_search(kind, **parts):
    """A sweep of two searched numbers with one of the samplers."""
    space = {path: {**entry, "num": 3} for path, entry in TWO.items()} if kind == "grid" else TWO
    return sweep(search=space, sampler=SAMPLERS[kind], budget={"trials": 6}, **parts)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_sweep_that_is_stopped_at_any_trial_proposes_what_an_undisturbed_one_would(kind):
    confirm = {"seeds": {"min": 3, "max": 5}, "effect": 0.02}
    spec = build_search(kind, confirm=confirm)
    valley = Valley({"pre": 2.0, "post": 2.06})
    plain = run(spec, valley)
    storage = optuna.storages.InMemoryStorage()
    for _ in range(100):
        broken = simulate(spec, valley, storage, trials=1)
        if broken == plain:
            break
    assert broken == plain
    assert simulate(spec, valley, storage) == plain  # the same command again runs nothing
    assert plain.runs.select(stage=(EXTENSION, CHALLENGE))  # what was stopped holds these too


@pytest.mark.parametrize("kind", SAMPLERS)
def test_what_is_interrupted_or_diverges_does_not_move_the_later_points(kind):
    """Interrupted trials are continued; of every six runs one diverges, which samplers have to learn from."""
    spec, points = build_search(kind), []
    for stopped in ((), (1, 3, 4)):
        queue, number = open_queue(optuna.storages.InMemoryStorage(), spec), 0
        while (task := queue.take()) and task.run.stage == SEARCH:
            if task.arm == "pre" and number in stopped:
                task.let_go("stopped")
                task = queue.take()
            value = math.log10(task.params["optimizer.lr"] / 3e-3) ** 2 + task.params["optimizer.weight_decay"]
            status = "diverged" if task.run.number == 2 else "completed"
            task.record_result(Result(status, {"val/loss": value}, step=1, run_id=None, seconds=0.0))
            number += task.arm == "pre"
        points.append([run.params for run in read(queue).search("pre")])
    assert points[0] == points[1]
    assert len(points[0]) == 6


def test_a_stopped_sweep_has_compared_the_arms_evenly():
    spec = sweep(
        sampler="random", budget={"trials": 6}, confirm={"seeds": 3, "effect": 9}
    )  # no luck of a choice matters
    for trials in range(1, 31, 2):
        record = run(spec, trials=trials)
        counts = [len(t) for t in by_arm(record).values()]
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == min(trials, 12)
        selected = [len(record.runs.select(arm, SELECTION)) for arm in ARMS]
        assert max(selected) - min(selected) <= 1
        assert sum(selected) == max(0, min(trials - 12, 12))
        assert sum(map(len, by_arm(record, FRESH).values())) == max(0, min(trials - 24, 6))


def test_arms_get_the_same_first_points():
    record = run(sweep(sampler="random", budget={"trials": 4}))
    points = [[trial.params for trial in record.search(arm)] for arm in ARMS]
    assert points[0] == points[1]
    assert len(points[0]) == 4


def test_the_search_starts_from_the_fixed_points():
    arms = {"pre": {"norm": "pre"}, "mix": {"norm": "mix", "search": {"norm.alpha": [0.2, 0.4]}}}
    fixed = [{"optimizer.lr": 1e-3}, {"optimizer.lr": 2e-3}]
    spec = sweep(arms=arms, fixed=fixed, sampler="random", budget={"trials": 4})
    record = run(spec, Valley({"pre": 2.0, "mix": 2.0}))
    assert [trial.params for trial in record.search("pre")[:2]] == fixed
    first, second, third, _ = (t.params for t in record.search("mix"))
    assert (first["optimizer.lr"], second["optimizer.lr"]) == (1e-3, 2e-3)
    assert third["optimizer.lr"] not in (1e-3, 2e-3)
    assert len({t.params["optimizer.lr"] for t in record.search("pre")}) == 4


def test_pruning_leaves_every_arm_a_trial_that_ends():
    """Also where each trial is worse than the one before: what is compared is a trial's arm alone, and not all of it
    is removed."""
    spec = sweep(budget={"trials": 6}, pruner="median", sampler="random", experiment={"trainer.max_steps": 90})
    for direction in (1, -1):
        queue = open_queue(optuna.storages.InMemoryStorage(), spec)
        while task := queue.take():
            for step in range(10, 91, 10):
                task.report({step: {"val/loss": 2.0 + direction * 0.1 * task.run.number + 100 * (task.arm == "post")}})
                pruned = task.should_prune()
                assert not (pruned and step < 30)
                if pruned:
                    break
            task.record_result(Result("pruned" if pruned else "completed", {"val/loss": 2.0}, step, None, 0.0))
        for arm, trials in by_arm(read(queue)).items():
            assert trials[0].status == "completed", arm
            assert direction == -1 or "pruned" in {trial.status for trial in trials}


def pruned_sweep(spec, interrupts=None):
    """(status, params, value, curve) of each trial of both arms, with a validation every 10 of 90 updates. Before each
    new validation the trial is interrupted where the generator `interrupts` says so, and goes on from there."""
    queue = open_queue(optuna.storages.InMemoryStorage(), spec)
    while task := queue.take():
        known = task.read().intermediate_values
        lr = task.params["optimizer.lr"]
        status, value = "completed", None
        for step in range(10, 91, 10):
            if step in known:
                continue
            if interrupts is not None and interrupts.random() < 0.3:
                task.let_go("stopped")
                break
            value = 2 + math.log10(lr / 3e-3) ** 2 * (1 - 5 / step) + 10 / step
            task.report({step: {"val/loss": value}})
            if task.should_prune():
                status = "pruned"
                break
        else:
            step = 90
        if read(queue).search(task.arm).select(status="running"):
            task.record_result(Result(status, {"val/loss": value}, step, None, 0.0))
    return [[(r.status, r.params, r.value, r.curve) for r in runs] for runs in by_arm(read(queue)).values()]


@pytest.mark.parametrize("kind", PRUNERS)
def test_pruning_is_alike_for_arms_and_for_interrupted_trials(kind):
    spec = sweep(budget={"trials": 20}, pruner=PRUNERS[kind], sampler="random", experiment={"trainer.max_steps": 90})
    pre, post = pruned_sweep(spec)
    assert pre == post
    assert ("pruned" in {status for status, *_ in pre}) == (kind != "none")
    for seed in range(3):
        assert pruned_sweep(spec, random.Random(seed)) == [pre, post]


def test_what_is_changed_after_the_seeds_were_looked_at_is_remembered():
    """Another baseline makes more comparisons, another effect is one that was not chosen beforehand."""
    storage, valley = optuna.storages.InMemoryStorage(), Valley({"pre": 2.0, "post": 2.0, "mix": 2.0})
    three = {"search": FIVE, "sampler": "grid", "arms": THREE}
    simulate(sweep(**three, baseline="pre", confirm={"seeds": 3, "effect": 0.05}), valley, storage)
    later = sweep(**three, baseline="post", confirm={"seeds": 3, "effect": 0.5})
    record = simulate(later, valley, storage)
    assert record.first_effects == dict.fromkeys(THREE, 0.05)
    assert {arm: set(bases) for arm, bases in record.against.items()} == {
        "pre": {"post"},
        "post": {"pre"},
        "mix": {"pre", "post"},
    }
    assert list_earlier_pairs(record) == [("mix", "pre")]
    assert compare_record(record)["mix"].family == 3
    told = " ".join(explain_comparison(record, compare_record(record)))
    assert "confirm.effect was 0.05 when the seeds were first looked at, and is 0.5 now" in told
    assert "Earlier, mix and pre were compared with another baseline; these comparisons share the error too." in told


def test_the_trial_that_stands_for_an_arm_is_the_chosen_one_and_its_checkpoint_stays():
    """The best of the search gets stuck on the selection seeds, so another one is tested."""
    storage, spec = optuna.storages.InMemoryStorage(), SPECS["grid"]

    def objective(arm, params, seed):
        lucky = arm == "post" and params["optimizer.lr"] == 1e-2
        return (1.5 if seed == 0 else TRIVIAL) if lucky else Valley(EQUAL)(arm, params, seed)

    def kept(record):
        runs = find_kept(replace(record, runs=record.runs.replace(map(name, record.runs))), "post")
        return {int(run.partition(" ")[2]) for run in runs if run.startswith("search")}

    def name(run):
        return replace(run, run_id=f"{run.stage} {run.number}")

    searched = sum(map(spec.trials, spec.all_arms))
    record = simulate(spec, objective, storage, trials=searched, trivial_loss=TRIVIAL)
    assert record.settled("post") == record.best("post")
    assert kept(record) == {trial.number for trial, _ in list_candidates(spec, record.search("post"))}
    record = simulate(spec, objective, storage, trivial_loss=TRIVIAL)
    assert record.best("post").params == {"optimizer.lr": 1e-2} != record.find_settings("post")
    assert kept(record) == {record.chosen["post"]}
