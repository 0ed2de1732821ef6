"""Samplers that learn from fewer trials than there are: which ones, and that proposals stay near the best."""

import itertools
import math
import random
import statistics

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.samplers import GPSampler, TPESampler
from optuna.trial import TrialState, create_trial

from ablate.scheduler.optuna_private import CarefulGp, ThinnedStudy, ThriftyTpe, thin_trials

SPACE = {"lr": FloatDistribution(1e-4, 1e-1, log=True), "decay": FloatDistribution(0.0, 0.3)}


def fill(trials, direction="minimize"):
    """A study whose value is best at a rate of 3e-3."""
    study, draw = optuna.create_study(direction=direction), random.Random(0)
    for number in range(trials):
        params = {"lr": 1e-4 * 1000 ** draw.random(), "decay": 0.3 * draw.random()}
        value = math.log10(params["lr"] / 3e-3) ** 2 + params["decay"]
        state = TrialState.FAIL if number % 10 == 9 else TrialState.COMPLETE
        value = None if state == TrialState.FAIL else value if direction == "minimize" else -value
        study.add_trial(create_trial(state=state, params=params, distributions=SPACE, value=value))
    return study


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_best_are_kept_and_the_others_evenly(direction):
    study = fill(100, direction)
    study.enqueue_trial({"lr": 1e-3})
    trials = study.get_trials()
    kept = thin_trials(trials, 40, direction == "maximize")
    assert [t.number for t in kept] == sorted(t.number for t in kept)
    assert kept[-1].state == TrialState.WAITING
    assert len(kept) == 41
    complete = [t for t in trials if t.state == TrialState.COMPLETE]
    best = sorted(complete, key=lambda t: t.value, reverse=direction == "maximize")[:10]
    assert {t.number for t in best} <= {t.number for t in kept}
    gaps = [later.number - earlier.number for earlier, later in itertools.pairwise(kept)]
    assert max(gaps) <= 6
    assert thin_trials(trials, 100, direction == "maximize") == trials


@pytest.mark.parametrize(("ours", "theirs", "few"), [(ThriftyTpe, TPESampler, 60), (CarefulGp, GPSampler, 12)])
def test_few_trials_are_all_learnt_from(ours, theirs, few):
    """The proposal is Optuna's own, bit for bit."""
    proposed = []
    for cls in (ours, theirs):
        study = fill(few)
        study.sampler = cls(seed=3)
        proposed.append(study.ask(SPACE).params)
    assert proposed[0] == proposed[1]


@pytest.mark.parametrize(("cls", "trials"), [(ThriftyTpe, 2000), (CarefulGp, 400)])
def test_many_trials_are_read_once_and_proposals_are_near_the_best(cls, trials):
    study = fill(trials)
    rates = []
    for seed in range(5):
        study.sampler = cls(seed=seed)
        rates.append(study.ask(SPACE).params["lr"])
    assert 1e-3 < statistics.median(rates) < 1e-2, rates
    assert len(ThinnedStudy(study, cls.most)._get_trials(states=(TrialState.COMPLETE,))) <= cls.most
