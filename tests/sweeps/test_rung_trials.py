"""Searches by rungs through the engine: against the replay of them, and with processes that are gone."""

import itertools
import math
from dataclasses import dataclass

import optuna
import pytest
from run_table import by_arm
from scheduler.queues import open_queue, read

from ablate.reports.findings import list_cautions
from ablate.scheduler.leases import OWNER
from ablate.scheduler.studies import name_study
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.spec.sweep import Sweep
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
    queue, _ = open_queues()
    order = []
    while task := queue.take():
        order.append((task.run.number, task.run.updates))
        loss = losses[task.run.number] - len(task.read().user_attrs.get("rungs", ()))
        task.record_result(result(loss, "paused" if task.run.updates else "completed"))
    assert [number for number, length in order if length == 33] == list(range(9))
    assert [number for number, length in order if length == 99] == [1, 3, 8]
    assert [number for number, length in order if length is None] == [1]
    found = read(queue).search("all")
    assert [trial.status for trial in found] == ["pruned", "completed", *["pruned"] * 7]
    assert found.finished == 9


def test_two_processes_agree_and_nobody_goes_on_early():
    spec = sweep()
    storage = optuna.storages.InMemoryStorage()
    queues = [open_queue(storage, spec) for _ in range(2)]
    running = []
    for queue in itertools.cycle(queues):
        if len(running) < 4 and (taken := queue.take()):
            running.append(taken)
            continue
        if not running:
            break
        task = running.pop(0)
        length = task.run.updates
        if length == 99:
            assert len([t for t in read(queue).search(task.arm) if t.rungs]) == 9
        loss = Valley({"pre": 2.0, "post": 2.0}).at((length or 300) / 300, task.arm, task.params, 0)
        task.record_result(result(loss, "paused" if length else "completed"))
    record = read(queues[0])
    for arm in record.arms:
        assert sorted(t.status for t in record.search(arm)) == ["completed", *["pruned"] * 8]
        assert len(queues[0].studies.list_attempts(name_study("climbed", 1, arm))) == 9  # one trial of Optuna each
    assert not queues[0].must_wait()


def test_a_trial_whose_process_was_killed_goes_on_at_its_rung():
    queue, other = open_queues()
    for _ in range(8):
        queue.take().record_result(result(2.5, "paused"))
    last = queue.take()
    assert other.take() is None  # eight wait
    last.note(OWNER, {"claim": 1})  # its process is gone
    again = other.take()
    assert (again.run.number, again.run.updates) == (last.run.number, 33)
    again.record_result(result(2.0, "paused"))
    assert other.take().run.updates == 99


def test_a_failed_trial_is_not_waited_for_and_is_retried_from_the_beginning():
    queue, _ = open_queues()
    for number in range(9):
        task = queue.take()
        if number == 4:
            task.record_failure("out of memory")
        else:
            task.record_result(result(2.0 + 0.1 * number, "paused"))
    taken = queue.take()
    assert (taken.run.number, taken.run.updates) == (0, 99)
    queue.begin_session()
    again = next(task for task in (queue.take() for _ in range(3)) if task.read().user_attrs.get("continues") == 4)
    assert again.run.updates == 33
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
    queue, _ = open_queues()
    queue.take().record_result(Result("paused", {}, 30, None, 0.0))
    assert read(queue).search("all")[0].status == "failed"


def test_tokens_of_the_copies_are_counted():
    queue, _ = open_queues()
    copied = Result(
        "paused", {"val/loss": 2.0}, 30, None, 1.0, facts={"ablate.branched_updates": 3}, items_per_update=10
    )
    for _ in range(9):
        queue.take().record_result(copied)
    queue.take()
    assert [trial.items for trial in read(queue).search("all") if trial.status == "pruned"] == [330] * 6


def open_queues():
    """One arm in the hands of two processes."""
    spec = sweep(arms={})
    storage = optuna.storages.InMemoryStorage()
    return [open_queue(storage, spec) for _ in range(2)]


def result(loss, status):
    return Result(status, {"val/loss": loss}, 30, None, 0.0)
