"""The order of trials, where a process dies between two looks at the storage."""

import itertools

import optuna
import pytest
from sweeps.test_processes import spec_of

from ablate.sweeps import arms
from ablate.sweeps import storage as sweep_storage
from ablate.sweeps.arms import ArmTrials
from ablate.sweeps.storage import create_study, name_study, open_storage
from ablate.sweeps.trial_queue import TrialQueue
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import simulate


@pytest.mark.parametrize("looks", range(6))
def test_no_candidate_is_listed_while_a_trial_is_missing(looks, tmp_path, monkeypatch):
    """The process of the last trial of the search ends after so many looks at it: whenever that is, the trial is waited
    for or started again, and no candidates are listed without it."""
    storage, spec = open_storage(f"sqlite:///{tmp_path / 'optuna.db'}"), spec_of(4)
    simulate(spec, Valley({"a": 2.0, "b": 2.1}), storage, trials=7)

    def open_queue():
        names = {arm: name_study(spec.name, 1, arm) for arm in spec.all_arms}
        return TrialQueue([ArmTrials(create_study(storage, n, spec), spec, a, "") for a, n in names.items()], storage)

    arm, trial = open_queue().take()
    count = itertools.count()
    for module in (arms, sweep_storage):
        monkeypatch.setattr(module, "is_orphan", lambda frozen: next(count) >= looks)
    taken = open_queue().take()
    assert taken is None or (taken[0].arm == arm.arm and taken[1].user_attrs["number"] == trial.user_attrs["number"])
    assert len(optuna.get_all_study_names(storage)) == 2
