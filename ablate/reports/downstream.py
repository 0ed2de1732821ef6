"""Downstream scores of a sweep's runs, as `ablate evaluate` left them in MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ablate.config.errors import StoreError
from ablate.config.formatting import format_number
from ablate.evaluation import results
from ablate.evaluation.comparing import Difference, by_question, difference
from ablate.evaluation.scoring import Score
from ablate.reports.cells import NOTHING, Cells, Column, Section
from ablate.sweeps.records import SweepRecord


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
    differences: dict[str, Difference]
    """Arm -> how much above the baseline, paired by question."""


@dataclass(frozen=True)
class Downstream:
    """All that is known."""

    rows: list[Row]
    runs: dict[str, int]
    """Arm -> runs that the means are over."""


def downstream(record: SweepRecord) -> Downstream:
    """Of each arm the trainings on fresh seeds that were evaluated, else its best trial. Nothing where there are none,
    or MLflow is away."""
    try:
        scores = results.read(record.title)
    except StoreError:
        scores = {}
    runs: dict[str, list[Mapping[str, Score]]] = {}
    for arm in record.trials:
        fresh = [t.run_id for t in record.confirmed.get(arm, ()) if t.run_id in scores]
        best = record.best(arm)
        found = fresh or ([best.run_id] if best is not None and best.run_id in scores else [])
        if found:
            runs[arm] = [scores[str(run_id)] for run_id in found]
    return Downstream(_rows(runs, record.spec.compared_with), {arm: len(found) for arm, found in runs.items()})


def _rows(runs: Mapping[str, list[Mapping[str, Score]]], baseline: str) -> list[Row]:
    keys = {
        (task, score.shots, metric): None
        for found in runs.values()
        for scores in found
        for task, score in scores.items()
        for metric in score.metrics
    }
    rows = []
    for task, shots, metric in keys:
        of = {
            arm: [s[task] for s in found]
            for arm, found in runs.items()
            if all(task in s and s[task].shots == shots and metric in s[task].metrics for s in found)
        }
        paired = {arm: by_question(scores, metric) for arm, scores in of.items()}
        is_mean = all(metric in s.stderr for scores in of.values() for s in scores)
        common = set.intersection(*(set(values) for values in paired.values())) if of else set()
        if is_mean and common:  # some may have been asked less than others
            paired = {arm: {q: v for q, v in values.items() if q in common} for arm, values in paired.items()}
            means = {arm: sum(values.values()) / len(values) for arm, values in paired.items()}
        else:
            means = {arm: sum(s.metrics[metric] for s in scores) / len(scores) for arm, scores in of.items()}
        compared = {
            arm: found
            for arm in of
            if is_mean and arm != baseline and baseline in of and (found := difference(paired[arm], paired[baseline]))
        }
        if of:
            rows.append(Row(task, shots, metric, len(common), means, compared))
    return rows


def section(found: Downstream, baseline: str) -> list[Section]:
    """A table; nothing where nothing was evaluated."""
    if not found.rows:
        return []
    rows, others = found.rows, [arm for arm in found.runs if arm != baseline]
    columns = [
        Column("task", [row.task for row in rows], words=True),
        Column("shots", [str(row.shots) for row in rows]),
        Column("metric", [row.metric for row in rows], words=True),
        Column("n", [f"{row.n:,}" for row in rows]),
        *(Column(arm, [format_number(row.means.get(arm)) for row in rows]) for arm in found.runs),
        *(Column(f"{arm} less {baseline}", [_spoken(row.differences.get(arm)) for row in rows]) for arm in others),
    ]
    said = [
        "n: questions. Differences are paired by question; in brackets their 95 % bootstrap interval over questions, "
        "which says nothing of other seeds.",
        "Runs: " + ", ".join(f"{arm} {count}" for arm, count in found.runs.items()) + ".",
    ]
    strong = frozenset(i for i, row in enumerate(rows) if any(d.shown for d in row.differences.values()))
    return [Section("Downstream tasks", Cells(columns, strong), said)]


def _spoken(found: Difference | None) -> str:
    return NOTHING if found is None else f"{found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"
