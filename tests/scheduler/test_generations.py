"""Two generations of one sweep, and two files of one name, at the same time."""

import pytest
from run_table import counts
from scheduler.small import SILENT

from ablate.config.errors import SweepError
from ablate.reports.report import report
from ablate.scheduler import preparation, run
from ablate.scheduler.preparation import begin_session, open_sweep
from ablate.scheduler.progress import Display
from ablate.scheduler.status import Follower
from ablate.scheduler.storage import read_sweep, storage_url
from ablate.scheduler.worker import Worker


class Here:
    """An executor whose one worker begins after `meanwhile` was called, and runs in this process."""

    def __init__(self, meanwhile):
        self.meanwhile = meanwhile

    def pick_threads(self, workers):
        return 1

    def build_workers(self, name, url, count, threads):
        self.meanwhile()
        self.end = Worker(name, url).run()
        return self

    count, patience = 1, 0.0
    start = stop = kill = lambda self, *words: None
    have_work = is_running = lambda self: False
    read_lines = replace_killed = lambda self: []


def test_a_command_trains_and_returns_its_own_generation_though_a_later_one_has_begun(store, spec):
    sweep = spec(arms={}, budget={"trials": 1})
    executor = Here(lambda: begin_session(sweep, storage_url(), True, 1))
    record = run.sweep(sweep, console=SILENT, executor=executor)
    assert (record.generation, counts(record)["completed"]) == (1, 1)
    assert sum(counts(read_sweep("small")).values()) == 0  # the second, which has begun no trial
    assert report(record, write=False).record.generation == 1


def test_who_follows_a_sweep_stays_with_its_generation(store, spec):
    sweep = spec(arms={}, budget={"trials": 1})
    queue, _ = begin_session(sweep, storage_url(), False, 1)
    follower = Follower("small", queue.storage, Display(SILENT, "val/loss", 1))
    begin_session(sweep, storage_url(), True, 1)
    follower._count()
    assert (queue.full_name, follower.record.full_name) == ("small@1", "small@1")
    worker = Worker("small@1", storage_url())
    assert (worker.title, worker.full_name) == ("small", "small@1")  # the name in MLflow, and the one that stays


def test_of_two_files_of_one_name_that_start_together_one_is_refused(store, spec, tiny_settings, monkeypatch):
    mine, other = (spec(arms={}, experiment={**tiny_settings, "trainer.max_steps": steps}) for steps in (10, 20))
    lock = preparation.do_locked

    def lock_after_the_other(storage, step):
        monkeypatch.setattr(preparation, "do_locked", lock)
        open_sweep(other, storage_url(), False, None)
        return lock(storage, step)

    monkeypatch.setattr(preparation, "do_locked", lock_after_the_other)
    with pytest.raises(SweepError, match=r"trainer\.max_steps: 20 -> 10"):
        open_sweep(mine, storage_url(), False, None)
    assert read_sweep("small").spec.base("all").trainer.max_steps == 20


def test_two_that_start_afresh_together_make_two_generations(store, spec, monkeypatch):
    sweep, lock, names = spec(arms={}), preparation.do_locked, []
    open_sweep(sweep, storage_url(), False, None)

    def lock_after_the_other(storage, step):
        monkeypatch.setattr(preparation, "do_locked", lock)
        names.append(open_sweep(sweep, storage_url(), True, None)[0].full_name)
        return lock(storage, step)

    monkeypatch.setattr(preparation, "do_locked", lock_after_the_other)
    names.append(open_sweep(sweep, storage_url(), True, None)[0].full_name)
    assert names == ["small@2", "small@3"]
