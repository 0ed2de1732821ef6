"""Runs of a sweep as plain values of a bundle, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ablate.addons.ledger.schema import Run, Rung, TaskScore
from ablate.tracking.provenance import COMPARED
from ablate.verdict.outcomes import FINISHED, RungEnd, TrialRecord, read_outcome
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


def to_runs(trials: Iterable[TrialRecord], trivial_loss: float | None, shared: Shared) -> list[Run]:
    """Return those of `trials` that have ended."""
    return [to_run(trial, trivial_loss, shared) for trial in trials if trial.status in PUBLISHED]


def to_run(trial: TrialRecord, trivial_loss: float | None, shared: Shared) -> Run:
    """Return a run that has ended."""
    outcome = read_outcome(trial, trivial_loss)
    return Run(
        number=trial.number,
        params=dict(trial.params),
        status=trial.status,
        ending=outcome.ending if outcome else None,
        value=_to_finite(trial.value),
        metrics={name: _to_finite(value) for name, value in trial.metrics.items()},
        curve=[[step, _to_finite(value)] for step, value in sorted(trial.curve.items())],
        step=trial.step,
        seconds=trial.seconds,
        items_per_update=trial.items_per_update,
        reason=trial.reason,
        costs={name: float(value) for name, value in trial.costs.items() if math.isfinite(value)},
        layers=dict(trial.layers),
        rungs=[
            Rung(
                updates=rung.updates,
                value=rung.value,
                metrics={name: _to_finite(value) for name, value in rung.metrics.items()},
                branched=rung.branched,
            )
            for rung in trial.rungs
        ],
        scores={task: _to_task_score(score, shared) for task, score in trial.scores.items()},
        surroundings=shared.number_facts(trial.facts),
    )


def to_trial(run: Run, arm: str, shared: Shared) -> TrialRecord:
    """Return a run as the record of a trial of `arm`. It has no run in MLflow."""
    return TrialRecord(
        arm=arm,
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


def _to_task_score(score: Score, shared: Shared) -> TaskScore:
    metrics = dict.fromkeys(metric for question in score.questions for metric in question.values)
    return TaskScore(
        shots=score.shots,
        metrics={metric: _to_finite(value) for metric, value in score.metrics.items()},
        stderr={metric: _to_finite(value) for metric, value in score.stderr.items()},
        questions=shared.number_questions(score.questions),
        values={metric: [_shorten(question.values.get(metric)) for question in score.questions] for metric in metrics},
        cut=score.cut,
        long=score.long,
    )


def _from_task_score(task: str, score: TaskScore, shared: Shared) -> Score:
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
