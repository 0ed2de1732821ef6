"""Runs of a sweep as plain values of a bundle, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ablate.addons.ledger import schema
from ablate.sweeps.runs import FINISHED, Run, RungEnd, Runs
from ablate.tracking.provenance import COMPARED
from ablate.verdict.outcomes import Outcome
from ablate.verdict.questions import Question, Score

PUBLISHED = (*FINISHED, "failed")
"""Statuses of runs that have ended."""
T = TypeVar("T")


@dataclass
class Shared:
    """What runs have in common, each kept once and numbered as it first comes."""

    surroundings: list[dict[str, str]] = field(default_factory=list)
    """Combinations of hardware, versions and corpus."""
    questions: list[list[str]] = field(default_factory=list)
    """Lists of questions of downstream tasks."""

    def number_facts(self, facts: Mapping[str, str]) -> int:
        """Return the number of the facts that should be the same in all runs."""
        return _number({key: str(facts[key]) for key in COMPARED if key in facts}, self.surroundings)

    def number_questions(self, questions: Sequence[Question]) -> int:
        """Return the number of the list of these questions."""
        return _number([question.id for question in questions], self.questions)


def _number(value: T, known: list[T]) -> int:
    """Return the index of `value` among the `known`, to which a new one is added."""
    if value not in known:
        known.append(value)
    return known.index(value)


def publish_runs(runs: Runs, shared: Shared) -> list[schema.Run]:
    """Return those of `runs` that have ended."""
    return [_publish(run, runs.find_outcome(run), shared) for run in runs if run.status in PUBLISHED]


def _publish(run: Run, outcome: Outcome | None, shared: Shared) -> schema.Run:
    return schema.Run(
        arm=run.arm,
        stage=run.stage,  # type: ignore[arg-type]
        seed=run.seed,
        at=run.at,
        number=run.number,
        params=dict(run.params),
        status=run.status,
        ending=outcome.ending if outcome else None,
        value=_to_finite(run.value),
        metrics={name: _to_finite(value) for name, value in run.metrics.items()},
        curve=[[step, _to_finite(value)] for step, value in sorted(run.curve.items())],
        step=run.step,
        seconds=run.seconds,
        items_per_update=run.items_per_update,
        reason=run.reason,
        costs={name: float(value) for name, value in run.costs.items() if math.isfinite(value)},
        layers=dict(run.layers),
        rungs=[
            schema.Rung(
                updates=rung.updates,
                value=rung.value,
                metrics={name: _to_finite(value) for name, value in rung.metrics.items()},
                branched=rung.branched,
            )
            for rung in run.rungs
        ],
        scores={task: _to_task_score(score, shared) for task, score in run.scores.items()},
        surroundings=shared.number_facts(run.facts),
    )


def restore_run(run: schema.Run, shared: Shared) -> Run:
    """Return a published run. It has no run in MLflow."""
    return Run(
        arm=run.arm,
        stage=run.stage,
        seed=run.seed,
        at=run.at,
        number=run.number,
        status=run.status,
        params=dict(run.params),
        value=run.value,
        metrics={name: _from_null(value) for name, value in run.metrics.items()},
        curve={int(step or 0): _from_null(value) for step, value in run.curve},
        step=run.step,
        seconds=run.seconds,
        run_id=None,
        reason=run.reason,
        items_per_update=run.items_per_update,
        facts=shared.surroundings[run.surroundings],
        costs=dict(run.costs),
        layers=dict(run.layers),
        rungs=tuple(
            RungEnd(
                rung.updates,
                rung.value,
                {name: _from_null(value) for name, value in rung.metrics.items()},
                rung.branched,
            )
            for rung in run.rungs
        ),
        scores={task: _from_task_score(task, score, shared) for task, score in run.scores.items()},
    )


def _to_task_score(score: Score, shared: Shared) -> schema.TaskScore:
    metrics = dict.fromkeys(metric for question in score.questions for metric in question.values)
    return schema.TaskScore(
        shots=score.shots,
        metrics={metric: _to_finite(value) for metric, value in score.metrics.items()},
        stderr={metric: _to_finite(value) for metric, value in score.stderr.items()},
        questions=shared.number_questions(score.questions),
        values={metric: [_shorten(question.values.get(metric)) for question in score.questions] for metric in metrics},
        cut=score.cut,
        long=score.long,
    )


def _from_task_score(task: str, score: schema.TaskScore, shared: Shared) -> Score:
    names = shared.questions[score.questions]
    answers = zip(*score.values.values(), strict=True) if score.values else [()] * len(names)
    rows = [dict(zip(score.values, row, strict=True)) for row in answers]
    return Score(
        task,
        {metric: _from_null(value) for metric, value in score.metrics.items()},
        {metric: _from_null(value) for metric, value in score.stderr.items()},
        [
            Question(name, {metric: float(value) for metric, value in row.items() if value is not None}, [])
            for name, row in zip(names, rows, strict=True)
        ],
        score.shots,
        score.cut,
        score.long,
    )


def _shorten(value: float | None) -> int | float | None:
    """Return a value as JSON has it: a whole number, as most answers are, without its decimal."""
    finite = _to_finite(value)
    return int(finite) if finite is not None and float(finite).is_integer() else finite


def _to_finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _from_null(value: float | None) -> float:
    return math.nan if value is None else value
