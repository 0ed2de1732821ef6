"""Downstream scores of a sweep's runs, as `ablate evaluate` left them in MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.config.errors import StoreError
from ablate.config.formatting import format_number
from ablate.reports.table import NOTHING, Column, Section, Table
from ablate.sweeps.records import SweepRecord
from ablate.tracking.scores import read_scores
from ablate.verdict.questions import QuestionDifference, Score, average_by_question, compare_by_question


@dataclass(frozen=True)
class Row:
    """One metric of one task."""

    task: str
    shots: int
    metric: str
    n: int
    """Questions that every run of every arm was asked."""
    means: dict[str, float]
    """Arm -> the mean over its runs, on those questions."""
    differences: dict[str, QuestionDifference]
    """Arm -> how much above the baseline, paired by question."""


@dataclass(frozen=True)
class Downstream:
    """All metrics of all tasks."""

    rows: list[Row]
    runs: dict[str, int]
    """Arm -> runs that the means are over."""


def compare_downstream(record: SweepRecord) -> Downstream:
    """Return the scores of each arm's trainings on fresh seeds that were evaluated, else of its best trial; nothing
    where there are none, or MLflow is away."""
    try:
        scores = read_scores(record.title)
    except StoreError:
        scores = {}
    runs: dict[str, list[dict[str, Score]]] = {}
    for arm in record.trials:
        fresh = [t.run_id for t in record.confirmed.get(arm, ()) if t.run_id in scores]
        best = record.best(arm)
        run_ids = fresh or ([best.run_id] if best is not None and best.run_id in scores else [])
        if run_ids:
            runs[arm] = [_parse_scores(scores[str(run_id)]) for run_id in run_ids]
    return Downstream(_compare_arms(runs, record.spec.compared_with), {arm: len(own) for arm, own in runs.items()})


def _parse_scores(contents: Mapping[str, Mapping[str, Any]]) -> dict[str, Score]:
    return {task: Score.from_dict(content) for task, content in contents.items()}


def _compare_arms(runs: Mapping[str, Sequence[Mapping[str, Score]]], baseline: str) -> list[Row]:
    """Return a row for each metric that every run of some arm has. `runs`: arm -> of each run task -> score."""
    keys = {
        (task, score.shots, metric): None
        for arm_runs in runs.values()
        for scores in arm_runs
        for task, score in scores.items()
        for metric in score.metrics
    }
    rows = []
    for task, shots, metric in keys:
        of_arms = {
            arm: [scores[task] for scores in arm_runs]
            for arm, arm_runs in runs.items()
            if all(task in s and s[task].shots == shots and metric in s[task].metrics for s in arm_runs)
        }
        if of_arms:
            rows.append(_compare_metric(task, shots, metric, of_arms, baseline))
    return rows


def _compare_metric(task: str, shots: int, metric: str, arms: Mapping[str, Sequence[Score]], baseline: str) -> Row:
    """Return the means of `arms` and their differences from `baseline`, on the questions that all were asked; of a
    metric that is no mean over questions, the means over runs alone."""
    means = {arm: sum(score.metrics[metric] for score in scores) / len(scores) for arm, scores in arms.items()}
    answers = {arm: average_by_question(scores, metric) for arm, scores in arms.items()}
    common = set.intersection(*(set(values) for values in answers.values()))
    if not all(metric in score.stderr for scores in arms.values() for score in scores):
        return Row(task, shots, metric, len(common), means, {})
    if common:  # some may have been asked less than others
        answers = {arm: {q: v for q, v in values.items() if q in common} for arm, values in answers.items()}
        means = {arm: sum(values.values()) / len(values) for arm, values in answers.items()}
    paired = {
        arm: compare_by_question(answers[arm], answers[baseline])
        for arm in answers
        if arm != baseline and baseline in answers
    }
    return Row(task, shots, metric, len(common), means, {arm: d for arm, d in paired.items() if d})


def tabulate(downstream: Downstream, baseline: str) -> list[Section]:
    """Return the table of the scores; nothing where nothing was evaluated."""
    rows, others = downstream.rows, [arm for arm in downstream.runs if arm != baseline]
    if not rows:
        return []
    columns = [
        Column("task", [row.task for row in rows], words=True),
        Column("shots", [str(row.shots) for row in rows]),
        Column("metric", [row.metric for row in rows], words=True),
        Column("n", [f"{row.n:,}" for row in rows]),
        *(Column(arm, [format_number(row.means.get(arm)) for row in rows]) for arm in downstream.runs),
        *(Column(f"{arm} less {baseline}", [_format(row.differences.get(arm)) for row in rows]) for arm in others),
    ]
    sentences = [
        "n: questions. Differences are paired by question; in brackets their 95 % bootstrap interval over questions, "
        "which says nothing of other seeds.",
        "Runs: " + ", ".join(f"{arm} {count}" for arm, count in downstream.runs.items()) + ".",
    ]
    strong = frozenset(i for i, row in enumerate(rows) if any(d.shown for d in row.differences.values()))
    return [Section("Downstream tasks", Table(columns, strong), sentences)]


def _format(difference: QuestionDifference | None) -> str:
    if difference is None:
        return NOTHING
    return f"{difference.mean:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}]"
