"""The values of a trial: chosen once, whenever the process that chooses them is killed."""

import json
import math

import optuna
import pytest
from sweeps.searchers import SAMPLERS

from ablate.scheduler.optuna_private import open_trial
from ablate.scheduler.samplers import build_sampler, to_distributions
from ablate.sweeps.search.methods import samplers
from ablate.sweeps.search.space import Range

SPACE = to_distributions({
    "optimizer.lr": Range(low=1e-4, high=1e-2, log=True), "norm.alpha": [0.25, 0.5, 0.75], "optimizer.warmup": [1, 2],
    "schedule.warmup_steps": Range(low=1, high=90),
})  # fmt: skip


class Killed(BaseException):
    """The end of a process."""


class Dying(optuna.storages.InMemoryStorage):
    """A storage whose process is killed before its write number `left`; None: it is not."""

    left = None

    def _count_write(self):
        if self.left == 0:
            raise Killed
        self.left = None if self.left is None else self.left - 1

    def set_trial_param(self, *words):
        self._count_write()
        super().set_trial_param(*words)

    def set_trial_system_attr(self, trial_id, key, value):
        self._count_write()
        super().set_trial_system_attr(trial_id, key, json.loads(json.dumps(value)))  # as a database keeps it


def choose(kind, number, kills, fixed):
    """The values of trial `number`, whose process is killed before each of its writes `kills` in turn, and how
    often it was killed."""
    study = optuna.create_study(storage=Dying())
    for earlier in range(number):
        study.sampler = optuna.samplers.RandomSampler(seed=earlier)
        trial = study.ask(SPACE)
        study.tell(trial, sum(math.log(value) for value in trial.params.values()))
    begun = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, system_attrs={"fixed_params": fixed})
    trial_id = study._storage.create_new_trial(study._study_id, begun)
    deaths = 0
    for left in [*kills, None]:
        study._storage.left = left
        study.sampler = build_sampler(samplers.parse(SAMPLERS[kind]), number)
        try:
            trial = open_trial(study, trial_id, SPACE, study.get_trials())
        except Killed:
            deaths += 1
            continue
        break
    assert study.trials[number].params == trial.params
    return trial.params, deaths


@pytest.mark.parametrize("fixed", [{}, {"norm.alpha": 0.75}], ids=["all free", "one fixed"])
@pytest.mark.parametrize("number", [0, 6])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_trial_killed_between_its_values_gets_those_of_an_undisturbed_one(kind, number, fixed):
    if kind == "grid":
        fixed = {
            path: distribution.choices[0] if hasattr(distribution, "choices") else distribution.high
            for path, distribution in SPACE.items()
        }  # a cell is whole
    undisturbed, _ = choose(kind, number, [], fixed)
    assert undisturbed.keys() == SPACE.keys()
    assert undisturbed.items() >= fixed.items()
    deaths = []
    while not deaths or deaths[-1]:
        values, died = choose(kind, number, [len(deaths), 1], fixed)
        assert values == undisturbed, len(deaths)
        deaths.append(died)
    assert sum(deaths) >= len(SPACE)
