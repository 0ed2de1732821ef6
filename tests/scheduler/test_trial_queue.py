"""The order of trials, where a process dies between two looks at the storage."""

import itertools

import optuna
import pytest
from scheduler.queues import open_queue
from scheduler.test_processes import spec_of

from ablate.scheduler import queue as queues
from ablate.scheduler import studies
from ablate.scheduler.storage import open_storage
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import simulate


@pytest.mark.parametrize("looks", range(6))
def test_no_candidate_is_listed_while_a_trial_is_missing(looks, tmp_path, monkeypatch):
    """The process of the last trial of the search ends after so many looks at it: whenever that is, the trial is waited
    for or started again, and no candidates are listed without it."""
    storage, spec = open_storage(f"sqlite:///{tmp_path / 'optuna.db'}"), spec_of(4)
    simulate(spec, Valley({"a": 2.0, "b": 2.1}), storage, trials=7)
    task = open_queue(storage, spec, session=False).take()
    count = itertools.count()
    for module in (queues, studies):
        monkeypatch.setattr(module, "is_orphan", lambda frozen: next(count) >= looks)
    taken = open_queue(storage, spec, session=False).take()
    assert taken is None or (taken.arm, taken.run.number) == (task.arm, task.run.number)
    assert len(optuna.get_all_study_names(storage)) == 2
