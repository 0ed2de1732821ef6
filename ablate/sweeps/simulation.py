"""Whole sweeps without training: an objective with a known optimum and known noise, run through the engine.

What a sweep concludes can so be compared with what is true. In `simulate` searching, taking turns, the budget and the
confirmation are those of a real sweep, without worker processes and MLflow; `replay` reaches the same outcomes from the
points alone, a thousand times as fast.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ablate.sweeps.arms import ArmTrials
from ablate.sweeps.preparation import open_confirmation
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.storage import create_study, name_study, read_generation
from ablate.sweeps.trial_queue import TrialQueue
from ablate.training.procedures import Result
from ablate.verdict.confirmation import FreshSeeds

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

POLL = 0.05  # seconds between two looks at what other processes do
Objective = Callable[[str, Mapping[str, Any], int], float]
"""(arm, params, seed) -> objective."""


@dataclass(frozen=True)
class Valley:
    """A loss that is quadratic in the logarithm of the learning rate, with normal noise that depends on the seed.

    The noise of a seed has a part that all arms share, as they see the same data in the same order, and a part of each
    training's own.
    """

    floors: Mapping[str, float]
    """Arm -> loss at its best learning rate."""
    best_lr: float = 3e-3
    """The learning rate of the floor."""
    curvature: float = 0.4
    """Loss at ten times the best learning rate, or a tenth, above the floor."""
    shared: float = 0.02
    """Standard deviation of what the seed does to all arms alike."""
    own: float = 0.01
    """Standard deviation of what is each training's own."""
    entropy: int = 0
    """A seed of the noise, besides arm, settings and seed."""

    def mean(self, arm: str, params: Mapping[str, Any]) -> float:
        """The expectation over seeds: what an infinite confirmation would find."""
        return self.floors[arm] + self.curvature * math.log10(params["optimizer.lr"] / self.best_lr) ** 2

    def __call__(self, arm: str, params: Mapping[str, Any], seed: int) -> float:
        common = np.random.default_rng([self.entropy, seed])
        settings = repr((arm, params["optimizer.lr"])).encode()
        alone = np.random.default_rng([self.entropy, seed, *settings])
        return self.mean(arm, params) + self.shared * common.standard_normal() + self.own * alone.standard_normal()


def simulate(spec: Sweep, objective: Objective, storage: BaseStorage, trials: int | None = None) -> SweepRecord:
    """Runs `spec` with `objective` in the place of training, until its budget is used or this process has finished
    `trials`, and returns what the storage then holds. Any number of processes may do so on one storage; a trial whose
    process is gone is tried again."""
    arms = []
    for arm in spec.all_arms:
        study = create_study(storage, name_study(spec.name, 1, arm), spec)
        arms.append(ArmTrials(study, spec, arm, parent=""))
    seeds = {arm: spec.base(arm).seed for arm in spec.all_arms}
    queue = TrialQueue(arms, storage, lambda arm: open_confirmation(arm, storage))
    queue.recover()
    finished = 0
    while trials is None or finished < trials:
        taken = queue.take()
        if taken is None:
            if not queue.must_wait():
                break
            time.sleep(POLL)
            continue
        turn, trial = taken
        params = turn.params(trial)
        value = objective(turn.arm, params, params.get("seed", seeds[turn.arm]))
        status = "completed" if math.isfinite(value) else "diverged"
        turn.record_result(trial, Result(status, {spec.objective.metric: value}, step=1, run_id=None, seconds=0.0))
        finished += 1
    return read_generation(storage, spec.name, 1)


def replay(spec: Sweep, objective: Objective, points: Mapping[str, Iterable[dict[str, Any]]]) -> dict[str, FreshSeeds]:
    """Return the confirmation that `simulate` ends with where its search tries `points` (arm -> params), as the points
    of a grid or of a random sampler do not depend on what is found. The objective is minimised and finite."""
    arms = {}
    for arm, tried in points.items():
        seed = spec.base(arm).seed
        best = min(tried, key=lambda params: objective(arm, params, seed))
        values = {fresh: objective(arm, best, fresh) for fresh in spec.fresh_seeds()}
        arms[arm] = FreshSeeds(values, 0, best)
    return arms
