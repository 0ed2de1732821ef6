"""Whole sweeps without training: an objective with a known optimum and known noise, run through the engine, so that a
sweep's conclusions can be compared with the true values. In `simulate` searching, taking turns, the budget and all that
follows the searches are those of a real sweep, without worker processes and MLflow; `replay` reaches the same
conclusions from the points alone, hundreds of times as fast.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ablate.experiment.metrics import find_resolution
from ablate.scheduler.queue import Queue
from ablate.scheduler.storage import read_generation
from ablate.scheduler.studies import create_study, name_study
from ablate.sweeps.comparison import (
    compare_arms,
    compare_effects,
    cross_params,
    find_due_looks,
    plan_round,
    rank_candidates,
)
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.search.rungs import climb, rank_reached
from ablate.sweeps.spec.sweep import Sweep
from ablate.training.procedures import Result
from ablate.verdict.comparison import Compared, FreshOutcomes
from ablate.verdict.effects import Effect
from ablate.verdict.outcomes import LOSS, Outcome, choose_candidate, classify

from .losses import Objective, Staged

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

POLL = 0.05  # seconds between two looks at what other processes do


def simulate(
    spec: Sweep,
    objective: Objective,
    storage: BaseStorage,
    trials: int | None = None,
    *,
    trivial_loss: float | None = None,
    validation_items: int | None = None,
) -> SweepRecord:
    """Run `spec` with `objective` instead of training, and return the sweep's record. Any number of processes may do so
    on one storage; a trial whose process has ended is retried.

    Args:
        spec: the sweep.
        objective: what a training ends at.
        storage: Optuna's.
        trials: after how many of its own this process ends; None: when there is nothing left.
        trivial_loss: of the data; a val/loss of 98 % of it or more is stuck. None: it is not known.
        validation_items: of the data; 1 over it is the resolution of an accuracy. None: it is not known.
    """
    notes = {"trivial_loss": trivial_loss, "validation_items": validation_items}
    for arm in spec.all_arms:
        study = create_study(storage, name_study(spec.name, 1, arm), spec)
        for key, note in notes.items():
            if note is not None:
                study.set_user_attr(key, note)
    queue = Queue(storage, spec.name, 1, spec)
    queue.begin_session()
    finished = 0
    while trials is None or finished < trials:
        task = queue.take()
        if task is None:
            if not queue.must_wait():
                break
            time.sleep(POLL)
            continue
        length = task.run.updates
        share = length / spec.base(task.arm).trainer.max_steps if length else 1.0
        seed = task.params.get("seed", spec.base(task.arm).seed)
        value = _call(spec, objective, task.arm, task.params, seed, share)
        status = "diverged" if not math.isfinite(value) else "paused" if length else "completed"
        task.record_result(Result(status, {spec.objective.metric: value}, step=1, run_id=None, seconds=0.0))
        finished += 1
    return read_generation(storage, spec.name, 1)


def replay(
    spec: Sweep,
    objective: Objective,
    points: Mapping[str, Iterable[dict[str, Any]]],
    *,
    trivial_loss: float | None = None,
    validation_items: int | None = None,
    then: Callable[[Sweep, Mapping[str, Compared]], Sweep | None] = lambda spec, compared: None,
) -> dict[str, Compared]:
    """Return what may be said of the arms that `simulate` ends with where its search tries `points` (arm -> settings),
    as those of a grid or of a random sampler do not depend on what is found. A sweep that tests every point of its grid
    has no search, and takes no points.

    `then` is given the sweep and what it concludes, and returns the sweep with which somebody goes on, such as one with
    more seeds; None: nobody does. The other arguments are those of `simulate`.
    """
    ends = replay_design(
        spec,
        objective,
        points,
        trivial_loss=trivial_loss,
        validation_items=validation_items,
        then=lambda spec, ends: then(spec, ends.compared),
    )
    return ends.compared


@dataclass(frozen=True)
class Conclusions:
    """What a sweep ends with."""

    compared: dict[str, Compared]
    """Arm -> what may be said of it."""
    effects: dict[str, Effect]
    """Of a factorial: contrast -> what may be said of it."""


def replay_design(
    spec: Sweep,
    objective: Objective,
    points: Mapping[str, Iterable[dict[str, Any]]],
    *,
    trivial_loss: float | None = None,
    validation_items: int | None = None,
    then: Callable[[Sweep, Conclusions], Sweep | None] = lambda spec, ends: None,
) -> Conclusions:
    """Return what may be said of the arms, and of the effects of a factorial; the arguments are those of `replay`."""
    resolution = find_resolution(spec.objective.metric, {}, validation_items)
    run = _Trainer(spec, objective, trivial_loss)
    found: Mapping[str, dict[str, Any] | None] = {arm: dict(cell.point) for arm, cell in spec.cells.items()} or {
        arm: _choose(spec, arm, run, list(tried)) for arm, tried in points.items()
    }
    chosen = {arm: params for arm, params in found.items() if params is not None}
    arms = {arm: FreshOutcomes({}, params or {}, found=params is not None) for arm, params in found.items()}
    crossed: dict[tuple[str, str], Mapping[int, Outcome]] = {}
    while True:
        compared = compare_arms(spec, arms, crossed, resolution)
        effects = compare_effects(spec, arms, crossed, resolution)
        wanted = plan_round(spec, arms, chosen, compared, effects=effects)
        for arm, count in wanted.seeds.items():
            outcomes = run.add(arm, chosen[arm], arms[arm].outcomes, spec.fresh_seeds(count))
            arms[arm] = replace(arms[arm], outcomes=outcomes)
        for pair, count in wanted.crossed.items():
            loser, winner = pair
            params = cross_params(spec, chosen[loser], chosen[winner])
            crossed[pair] = run.add(loser, params, crossed.get(pair, {}), spec.fresh_seeds(count))
        due = find_due_looks(spec, arms, wanted)
        for arm, looks in due.items():
            arms[arm] = replace(arms[arm], looks=looks)
        if not due and not wanted.crossed:
            later = then(spec, Conclusions(compared, effects))
            if later is None:
                return Conclusions(compared, effects)
            spec = later


def _call(
    spec: Sweep, objective: Objective, arm: str, params: Mapping[str, Any], seed: int, share: float = 1.0
) -> float:
    """Return the objective of an arm, after a share of its updates; of one at a point of a grid with the name of the
    file, and the point."""
    if share < 1:
        if not isinstance(objective, Staged):
            raise TypeError("rungs need an objective with a method `at(share, arm, params, seed)`")
        return objective.at(share, arm, params, seed)
    if not spec.at_grid:
        return objective(arm, params, seed)
    cell = spec.cells[arm]
    return objective(cell.arm, {**params, **cell.point}, seed)


@dataclass(frozen=True)
class _Trainer:
    """Outcomes instead of training."""

    spec: Sweep
    objective: Objective
    trivial_loss: float | None

    def run(self, arm: str, params: Mapping[str, Any], seed: int, share: float = 1.0) -> Outcome:
        """Return the outcome of one seed, after a share of its updates."""
        value = _call(self.spec, self.objective, arm, params, seed, share)
        if not math.isfinite(value):
            return Outcome("diverged")
        return Outcome(classify(value if self.spec.objective.metric == LOSS else None, self.trivial_loss), value)

    def add(
        self, arm: str, params: Mapping[str, Any], before: Mapping[int, Outcome], seeds: Iterable[int]
    ) -> dict[int, Outcome]:
        """Return the outcomes `before` with those of `seeds` that are missing."""
        return {**before, **{seed: self.run(arm, params, seed) for seed in seeds if seed not in before}}


def _search(
    spec: Sweep, arm: str, trainer: _Trainer, tried: list[dict[str, Any]]
) -> list[tuple[dict[str, Any], float]]:
    """Return the candidates that the search of an arm ends with, and the objective that each reached in it; the best
    first."""
    base, rungs = spec.base(arm), spec.plan_rungs(arm)
    if not rungs:
        searched = [(params, trainer.objective(arm, params, base.seed)) for params in tried]
        done = [(params, value) for params, value in searched if math.isfinite(value)]
        return [done[i] for i in rank_candidates(spec, done)]

    def train(number: int, rung: int) -> Outcome:
        return trainer.run(arm, tried[number], base.seed, rungs[rung].updates / base.trainer.max_steps)

    maximize = spec.objective.direction == "maximize"
    standings = climb(rungs, train, maximize)
    best = rank_reached(rungs, standings, maximize)[: spec.confirm.candidates]
    return [(tried[number], standings[number].ended[-1].value or 0.0) for number in best]


def _choose(spec: Sweep, arm: str, trainer: _Trainer, tried: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the settings that an arm is tested at; None where no trial of it completed."""
    candidates = _search(spec, arm, trainer, tried)
    if len(candidates) < 2:
        return candidates[0][0] if candidates else None
    seeds = spec.selection_seeds()
    outcomes = [trainer.add(arm, params, {}, seeds) for params, _ in candidates]
    maximize = spec.objective.direction == "maximize"
    return candidates[choose_candidate([value for _, value in candidates], outcomes, maximize)][0]
