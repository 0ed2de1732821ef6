"""Whole sweeps without training: an objective with a known optimum and known noise, run through the engine, so that a
sweep's conclusions can be compared with the true values. In `simulate` searching, taking turns, the budget and all that
follows the searches are those of a real sweep, without worker processes and MLflow; `replay` reaches the same
conclusions from the points alone, hundreds of times as fast.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ablate.scheduler.preparation import pick_generation
from ablate.scheduler.queue import Queue
from ablate.scheduler.storage import do_locked, read_generation
from ablate.scheduler.studies import create_study, name_study
from ablate.sweeps.comparison import compare_record, compare_record_effects
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import SEARCH, Run, RungEnd, Runs
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.stages import CHOICE, LOOKS, Decision, Wanted, find_step
from ablate.training.procedures import Result
from ablate.verdict.comparison import Compared
from ablate.verdict.effects import Effect
from ablate.verdict.looks import Looks

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
    fresh: bool = False,
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
        fresh: begin a new generation.
    """
    notes = {"trivial_loss": trivial_loss, "validation_items": validation_items}

    def begin() -> Queue:
        generation, drawn = pick_generation(spec, storage, fresh, {})
        for arm in drawn.all_arms:
            study = create_study(storage, name_study(drawn.name, generation, arm), drawn)
            for key, note in notes.items():
                if note is not None:
                    study.set_user_attr(key, note)
        return Queue(storage, drawn.name, generation, drawn)

    queue = do_locked(storage, begin)
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
        share = length / spec.own_base(task.arm).trainer.max_steps if length else 1.0
        seed = task.params.get("seed", spec.own_base(task.arm).seed)
        value = _call(spec, objective, task.arm, task.params, seed, share)
        status = "diverged" if not math.isfinite(value) else "paused" if length else "completed"
        task.record_result(Result(status, {spec.objective.metric: value}, step=1, run_id=None, seconds=0.0))
        finished += 1
    return read_generation(storage, spec.name, queue.studies.generation)


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
    record: SweepRecord
    """The sweep with all of its runs."""


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
    record = SweepRecord(spec.name, 1, spec, Runs((), trivial_loss), validation_items=validation_items)
    if spec.cells:
        record = replace(record, chosen=dict.fromkeys(spec.cells, 0))
    tried = {arm: list(own) for arm, own in points.items()}
    while True:
        step = find_step(record)
        if step.decisions:
            record = note(record, step.decisions)
            continue
        wanted = [one for lane in step.lanes for one in lane.wanted]
        if wanted:
            rows = {(run.arm, run.stage, run.number, run.seed): run for run in record.runs}
            for one in wanted:
                run = train_run(record, objective, one, tried)
                rows[run.arm, run.stage, run.number, run.seed] = run
            record = replace(record, runs=record.runs.replace(rows.values()))
            continue
        ends = Conclusions(compare_record(record), compare_record_effects(record), record)
        later = then(record.spec, ends)
        if later is None:
            return ends
        record = replace(record, spec=later)


def note(record: SweepRecord, decisions: Iterable[Decision]) -> SweepRecord:
    """Return the record with conclusions that are to be written down."""
    for decision in decisions:
        arm, content = decision.arm, decision.content
        if decision.kind == CHOICE:
            record = replace(record, chosen={**record.chosen, arm: content["trial"]})
        elif decision.kind == LOOKS:
            looks = {**record.looks, arm: Looks(tuple(content["sizes"]), content["planned"])}
            against = {**record.against, arm: content["against"]}
            effects = {**record.first_effects, arm: content["effect"]}
            record = replace(record, looks=looks, against=against, first_effects=effects)
        else:
            rows = [
                replace(run, status="pruned")
                if (run.arm, run.stage, run.number) == (arm, SEARCH, content["number"])
                else run
                for run in record.runs
            ]
            record = replace(record, runs=record.runs.replace(rows))
    return record


def train_run(
    record: SweepRecord, objective: Objective, wanted: Wanted, tried: Mapping[str, Sequence[dict[str, Any]]]
) -> Run:
    """Return the run that is wanted, ended or at its rung."""
    spec, arm = record.spec, wanted.arm
    is_search = wanted.stage == SEARCH
    params = dict(tried[arm][wanted.number]) if is_search else wanted.params
    seed = spec.own_base(arm).seed if wanted.seed is None else wanted.seed
    share = wanted.updates / spec.own_base(arm).trainer.max_steps if wanted.updates else 1.0
    value = _call(spec, objective, arm, params, seed, share)
    is_finite = math.isfinite(value)
    status = "diverged" if not is_finite else "waiting" if wanted.updates else "completed"
    metrics = {spec.objective.metric: value} if is_finite else {}
    before = record.search(arm).select(number=wanted.number) if is_search else ()
    rungs = before[0].rungs if before else ()
    if status == "waiting":
        rungs = (*rungs, RungEnd(wanted.updates or 0, value, metrics, 0))
    ended = value if status == "completed" else None
    return Run(
        arm,
        wanted.number,
        status,
        params,
        ended,
        metrics,
        {},
        1,
        0.0,
        None,
        "",
        stage=wanted.stage,
        seed=seed,
        rungs=rungs,
    )


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
