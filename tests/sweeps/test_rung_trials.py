"""Searches by rungs through the engine: against the replay of them, and with processes that are gone."""

import itertools
import math
from dataclasses import dataclass

import optuna
import pytest
from run_table import by_arm

from ablate.reports.findings import list_cautions
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.leases import OWNER
from ablate.sweeps.rung_trials import build_arm
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.storage import create_study
from ablate.sweeps.trial_queue import TrialQueue
from ablate.training.procedures import Result
from benchmarks.simulation.losses import Valley, draw_uniform
from benchmarks.simulation.sweeps import replay, simulate

TRIVIAL = 3.3
NINE = {"low": 3e-4, "high": 3e-2, "log": True, "num": 9}
RATES = [float(f"{3e-4 * 100 ** (i / 8):.6g}") for i in range(9)]


def sweep(search=None, **parts):
    space = {"method": "rungs", "optimizer.lr": NINE, **(search or {})}
    tree = {
        "name": "climbed",
        "experiment": {"schedule": {"kind": "wsd", "warmup_fraction": 0.01, "decay_fraction": 0.1}},
        "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
        "search": space,
    }
    return Sweep.from_tree({**tree, **parts})


@dataclass(frozen=True)
class Failing(Valley):
    """A valley in which an arm diverges in a share of its trainings and gets stuck in another, early or late."""

    diverging: tuple = ()
    stuck: tuple = ()

    def at(self, share, arm, params, seed):
        drawn, when = draw_uniform(self.entropy, "fails", arm, params["optimizer.lr"], seed)
        diverges = dict(self.diverging).get(arm, 0)
        if when < share and drawn < diverges:
            return math.inf
        if when < share and drawn < diverges + dict(self.stuck).get(arm, 0):
            return TRIVIAL - 0.01
        return super().at(share, arm, params, seed) if share < 1 else super().__call__(arm, params, seed)

    def __call__(self, arm, params, seed):
        return self.at(1.0, arm, params, seed)


SPECS = {
    "tested": sweep(confirm={"seeds": 4}),
    "without candidates": sweep(confirm={"seeds": 3, "candidates": 1}),
    "two rungs": sweep({"rungs": 2, "keep": 0.34}, confirm={"seeds": 3}),
    "four rungs": sweep({"rungs": 4, "keep": 0.5, "first": 0.2}, confirm={"seeds": 3, "candidates": 2}),
    "maximized": sweep(
        objective={"metric": "val/accuracy", "direction": "maximize"}, confirm={"seeds": 3},
        experiment={
            "model": "vit-digits", "data": "digits",
            "schedule": {"kind": "wsd", "warmup_fraction": 0.01, "decay_fraction": 0.1},
        },
    ),
}  # fmt: skip
FAILURES = {"none": {}, "some": {"diverging": (("post", 0.3),), "stuck": (("pre", 0.3),)},
            "all": {"diverging": (("post", 1.0),)}}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("failing", FAILURES)
def test_the_engine_concludes_what_the_replay_does(name, failing):
    spec = SPECS[name]
    for entropy in range(3):
        floors = {"pre": 2.0, "post": 2.0 + 0.04 * entropy}
        objective = Failing(floors, own=0.02, early=2.0, drift=0.3, entropy=entropy, **FAILURES[failing])
        record = simulate(spec, objective, optuna.storages.InMemoryStorage(), trivial_loss=TRIVIAL)
        points = {arm: [{"optimizer.lr": rate} for rate in RATES] for arm in spec.all_arms}
        assert compare_record(record) == replay(spec, objective, points, trivial_loss=TRIVIAL)
        plan = [rung.settings for rung in spec.plan_rungs("pre")]
        for arm, trials in by_arm(record).items():
            assert [trial.params["optimizer.lr"] for trial in trials] == RATES
            assert {trial.status for trial in trials} <= {"completed", "pruned", "diverged"}
            assert [trial.number for trial in trials] == list(range(9))
            reached = [sum(len(trial.rungs) >= rung for trial in trials) for rung in range(1, len(plan))]
            assert all(count <= most for count, most in zip(reached, plan, strict=False))
            if failing == "none":
                assert reached == plan[: len(reached)]
            if arm in record.chosen:  # which has been trained to its end
                end = objective(arm, record.settled(arm).params, 0)
                assert record.settled(arm).status == ("completed" if math.isfinite(end) else "diverged")
                assert record.settled(arm).value == (end if math.isfinite(end) else None)


def test_the_order_of_rungs_and_who_is_waited_for():
    """By hand: the losses of nine settings; three of them go on, and then one."""
    losses = [2.9, 2.1, 2.5, 2.2, 2.8, 2.4, 2.7, 2.6, 2.3]
    arm, _ = open_arms()
    order = []
    while arm.tally().open > arm.tally().held:
        trial = arm.ask()
        order.append((trial.number, arm.find_length(trial)))
        loss = losses[trial.number] - len(trial.user_attrs.get("rungs", ()))
        arm.record_result(trial, result(loss, "paused" if arm.find_length(trial) else "completed"))
        arm.free_orphans()
    assert [number for number, length in order if length == 33] == list(range(9))
    assert [number for number, length in order if length == 99] == [1, 3, 8]
    assert [number for number, length in order if length is None] == [1]
    statuses = [trial.status for trial in arm.read_trials()]
    assert statuses == ["pruned", "completed", *["pruned"] * 7]
    assert arm.tally().finished == 9


def test_two_processes_agree_and_nobody_goes_on_early():
    spec = sweep()
    storage = optuna.storages.InMemoryStorage()
    queues = [
        TrialQueue([build_arm(create_study(storage, arm, spec), spec, arm, "") for arm in spec.all_arms], storage)
        for _ in range(2)
    ]
    running = []
    for queue in itertools.cycle(queues):
        if len(running) < 4 and (taken := queue.take()):
            running.append(taken)
            continue
        if not running:
            break
        arm, trial = running.pop(0)
        length = arm.find_length(trial)
        if length == 99:
            first = [t for t in arm.read_trials() if t.rungs]
            assert len(first) == 9
        loss = Valley({"pre": 2.0, "post": 2.0}).at((length or 300) / 300, arm.arm, trial.params, 0)
        arm.record_result(trial, result(loss, "paused" if length else "completed"))
    for arm in queues[0].arms:
        arm.refresh()
        assert sorted(t.status for t in arm.read_trials()) == ["completed", *["pruned"] * 8]
        assert len(arm._read_attempts()) == 9  # one trial of Optuna each
    assert not queues[0].must_wait()


def test_a_trial_whose_process_was_killed_goes_on_at_its_rung():
    arm, other = open_arms()
    for _ in range(8):
        arm.record_result(arm.ask(), result(2.5, "paused"))
    last = arm.ask()
    assert arm.tally().held == 8
    arm.study._storage.set_trial_user_attr(last._trial_id, OWNER, {"claim": 1})  # its process is gone
    other.refresh()
    again = other.ask()
    assert again.number == last.number
    assert other.find_length(again) == 33
    other.record_result(again, result(2.0, "paused"))
    other.refresh()
    assert other.find_length(other.ask()) == 99


def test_a_failed_trial_is_not_waited_for_and_is_retried_from_the_beginning():
    arm, _ = open_arms()
    for number in range(9):
        trial = arm.ask()
        if number == 4:
            arm.record_failure(trial, "out of memory")
        else:
            arm.record_result(trial, result(2.0 + 0.1 * number, "paused"))
    taken = arm.ask()
    assert (taken.number, arm.find_length(taken)) == (0, 99)
    arm.begin_session()
    arm.recover()
    again = next(t for t in (arm.ask() for _ in range(3)) if t.user_attrs.get("continues") == 4)
    assert arm.find_length(again) == 33
    assert again.params["optimizer.lr"] == RATES[4]


def test_a_report_says_where_more_went_on_than_planned():
    """Nothing has learned at the first rung: all nine go on, where three were to."""

    class Late(Valley):
        def at(self, share, arm, params, seed):
            return TRIVIAL if share < 0.2 else super().at(share, arm, params, seed)

    spec = sweep(confirm={"seeds": 3})
    record = simulate(spec, Late({"pre": 2.0, "post": 2.0}), optuna.storages.InMemoryStorage(), trivial_loss=TRIVIAL)
    (note,) = [text for text in list_cautions(record) if "More settings went on" in text]
    assert "pre (9 settings for 3 from rung 1;" in note
    assert "post (9 settings for 3 from rung 1;" in note
    plain = simulate(spec, Valley({"pre": 2.0, "post": 2.0}), optuna.storages.InMemoryStorage(), trivial_loss=TRIVIAL)
    assert not [text for text in list_cautions(plain) if "More settings went on" in text]


def test_a_validation_without_the_objective_is_a_failure():
    arm, _ = open_arms()
    arm.record_result(arm.ask(), Result("paused", {}, 30, None, 0.0))
    assert arm.read_trials()[0].status == "failed"


def test_tokens_of_the_copies_are_counted():
    arm, _ = open_arms()
    copied = Result(
        "paused", {"val/loss": 2.0}, 30, None, 1.0, facts={"ablate.branched_updates": 3}, items_per_update=10
    )
    for _ in range(9):
        arm.record_result(arm.ask(), copied)
    arm.free_orphans()
    assert [trial.items for trial in arm.read_trials() if trial.status == "pruned"] == [330] * 6


def open_arms():
    """One arm in the hands of two processes."""
    spec = sweep(arms={})
    storage = optuna.storages.InMemoryStorage()
    return [build_arm(create_study(storage, "all", spec), spec, "all", "") for _ in range(2)]


def result(loss, status):
    return Result(status, {"val/loss": loss}, 30, None, 0.0)
