"""Downstream scores of a sweep's runs, as `ablate evaluate` stored them: their means, the differences of arms over
questions and seeds, and as metrics of each arm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from ablate.config.formatting import count_noun, format_uncertain
from ablate.reports.section import NOTHING, Column, Section, Table, words
from ablate.scheduler.donors import describe_shared_start, state_shared_starts
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import Run
from ablate.tracking.scores import name_metrics, read_scores
from ablate.verdict.failures import ALPHA
from ablate.verdict.looks import Looks, find_last_level
from ablate.verdict.questions import (
    Parts,
    Score,
    SeedDifference,
    average_by_question,
    average_tasks,
    bound_difference,
    decompose,
)
from ablate.verdict.sequential import LEAST

Seed = int | None
"""None: the seed of the search, for the trial that represents an arm."""
ScoredRuns = dict[str, dict[Seed, dict[str, Score]]]
"""Arm -> seed -> task -> score."""


@dataclass(frozen=True)
class StoredScores:
    """Scores of tasks that all of these trainings were asked alike."""

    by_arm: dict[str, dict[Seed, dict[str, float]]] = field(default_factory=dict)
    """Arm -> seed -> metric, such as eval/piqa/acc -> value."""
    unlike: frozenset[str] = frozenset()
    """Metrics of tasks with different numbers of questions or of solved examples, which have no common mean."""

    def read(self, arm: str, seed: Seed) -> Mapping[str, float]:
        """Return the scores of one training; none if it was not scored."""
        return self.by_arm.get(arm, {}).get(seed, {})


def add_scores(record: SweepRecord) -> SweepRecord:
    """Return the record with the scores of its trials and of its runs on fresh seeds, as `ablate evaluate` logged them
    to MLflow. A record of a bundle, which has no runs there, is returned as it is. Raises StoreError."""
    if not any(run.run_id for run in record.runs) or not (scores := read_scores(record.title)):
        return record

    def add(trial: Run) -> Run:
        contents = scores.get(trial.run_id or "")
        if contents is None:
            return trial
        return replace(trial, scores={task: Score.from_dict(content) for task, content in contents.items()})

    return replace(record, runs=record.runs.replace(map(add, record.runs)))


def find_scored_runs(record: SweepRecord) -> ScoredRuns:
    """Return the scored runs of each arm on fresh seeds that trained; for an arm without any, the trial that represents
    it in the search, if that was scored."""
    runs: ScoredRuns = {}
    for arm in record.arms:
        own: dict[Seed, dict[str, Score]] = {
            run.seed: run.scores
            for run in record.fresh(arm)
            if run.scores and (outcome := record.runs.find_outcome(run)) and outcome.trained
        }
        settled = None if record.spec.cells else record.settled(arm)
        if not own and settled and settled.scores:
            own[None] = settled.scores
        if own:
            runs[arm] = own
    return runs


def collect_scores(runs: ScoredRuns) -> StoredScores:
    """Return the scores of `runs` by the names that they have as metrics."""
    asked: dict[str, set[tuple[int, int]]] = {}
    for scores in (scores for own in runs.values() for scores in own.values()):
        for task, score in scores.items():
            asked.setdefault(task, set()).add((score.shots, len(score.questions)))
    unlike = {task for task, ways in asked.items() if len(ways) > 1}
    by_arm: dict[str, dict[Seed, dict[str, float]]] = {}
    left_out: set[str] = set()
    for arm, own in runs.items():
        for seed, scores in own.items():
            alike = {task: score.metrics for task, score in scores.items() if task not in unlike}
            by_arm.setdefault(arm, {})[seed] = name_metrics(alike)
            left_out.update(name_metrics({task: scores[task].metrics for task in unlike & scores.keys()}))
    return StoredScores(by_arm, frozenset(left_out))


MOST_COLUMNS = 6
"""Arms that have a column each."""


@dataclass(frozen=True)
class Row:
    """One metric of one task, or its mean over tasks."""

    task: str
    shots: int
    metric: str
    n: int
    """Number of questions that were scored in every run of every arm."""
    means: dict[str, float]
    """Arm -> the mean over its runs, on these questions."""
    differences: dict[str, SeedDifference]
    """Arm -> its difference to its baseline, on the same questions and seeds."""


@dataclass(frozen=True)
class Downstream:
    """All metrics of all tasks."""

    rows: list[Row]
    runs: dict[str, int]
    """Arm -> number of runs in the means."""
    comparisons: int = 0
    """The differences over three seeds or more. Each pair in the other sizes of the file counts as many rows, scored or
    not."""
    family: int = 0
    """Number of comparisons that share an error of 5 %: these, and those of the objective in the whole file. 0: there
    are none of these."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Arm -> number of fresh seeds on which both it and the baseline ended, but which its differences omit."""
    searched: list[str] = field(default_factory=list)
    """Arms without a scored fresh seed, whose representative trial of the search was scored."""
    shared_starts: dict[str, str] = field(default_factory=dict)
    """Arm -> the model that all of its seeds start from (`describe_shared_start`)."""
    shared_start: str = ""
    """The sentence about these shared starts."""
    baselines: dict[str, str] = field(default_factory=dict)
    """Arm -> the one that it is compared with: the baseline, at the same point of a grid."""
    stored: StoredScores = field(default_factory=StoredScores)
    """The same scores as metrics."""

    def list_shown(self, row: Row) -> list[str]:
        """Return the arms that are shown to differ from the baseline. Seeds that share a start do not show the
        variation between starts."""
        tied = self.shared_starts
        return [
            arm
            for arm, d in row.differences.items()
            if d.excludes_zero and arm not in tied and self.baselines[arm] not in tied
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        rows = []
        for row in self.rows:
            shown = self.list_shown(row)
            differences = {
                arm: {**asdict(d), "n": d.n_questions, "interval": d.interval, "shown": arm in shown}
                for arm, d in row.differences.items()
            }
            rows.append({**asdict(row), "differences": differences})
        plain = {key: value for key, value in vars(self).items() if key not in ("shared_start", "baselines", "stored")}
        return {**plain, "rows": rows}


def compare_downstream(record: SweepRecord) -> Downstream:
    """Return the scores of each arm's trainings on fresh seeds that were evaluated, else of the trial that represents
    it; nothing if the trials of the record have none. Their comparisons are one family with those of the file."""
    runs = find_scored_runs(record)
    if not runs:
        return Downstream([], {})
    outcomes = {arm: record.fresh(arm).outcomes() for arm in record.arms}
    baselines = {arm: base for arm, base in record.spec.baselines.items() if base != arm}
    pairs = {
        arm: [seed for seed in own if seed in runs.get(baselines[arm], {})]
        for arm, own in runs.items()
        if arm in baselines
    }
    measured = _measure_tasks(runs, baselines, pairs)
    measured += _average_over_tasks(measured)
    compared = sum(len(parts.by_seed) >= LEAST for m in measured for parts in m.parts.values())
    family = compared + (len(measured) * (record.spec.family or 0) if compared else 0)
    total = max([family, *(c.family for c in compare_record(replace(record, scored=family)).values())])
    alpha = ALPHA / max(1, total)
    ended = {arm: [s for s in outcomes[arm] if s in outcomes.get(baselines[arm], {})] for arm in pairs}
    levels = {arm: _find_level(record, arm, ended[arm], pairs[arm], alpha) for arm in pairs}
    starts = {arm: start for arm in runs if (start := describe_shared_start(record, arm))}
    return Downstream(
        [m.bound(levels, pairs) for m in measured],
        {arm: len(own) for arm, own in runs.items()},
        family,
        total if family else 0,
        {arm: len(set(ended[arm]) - set(pairs[arm])) for arm in pairs},
        [arm for arm, own in runs.items() if None in own],
        starts,
        state_shared_starts(record) if starts else "",
        baselines,
        collect_scores(runs),
    )


def _find_level(record: SweepRecord, arm: str, ended: Sequence[int], pairs: Sequence[Seed], alpha: float) -> float:
    """Return the level of the intervals of `arm` for an error of `alpha` over all looks at its seeds.

    Args:
        record: the sweep.
        arm: not the baseline.
        ended: the seeds that were run for both, ascending.
        pairs: those of them that are compared.
        alpha: the error.
    """
    if not ended:
        return 0.0
    planned = max(len(ended), record.spec.confirm.most_seeds)
    looks = record.looks.get(arm, Looks((len(ended),), planned)).add(len(ended))
    compared = set(pairs)
    return find_last_level(looks, alpha, [seed in compared for seed in ended])


@dataclass(frozen=True)
class _Measured:
    """A row before its intervals: their level depends on how many there are."""

    row: Row
    parts: dict[str, Parts]
    """Arm -> its differences from the baseline."""
    questions: frozenset[str]
    """Questions that all were asked."""

    def bound(self, levels: Mapping[str, float], pairs: Mapping[str, Sequence[Seed]]) -> Row:
        """Return the row with the differences at `levels`."""
        differences = {}
        for arm, parts in self.parts.items():
            found = bound_difference(parts, levels[arm])
            values = {**asdict(found), "n_seeds": len(pairs[arm])}
            differences[arm] = SeedDifference(**values)
        return Row(**{**vars(self.row), "differences": differences})


def _measure_tasks(
    runs: ScoredRuns, baselines: Mapping[str, str], pairs: Mapping[str, Sequence[Seed]]
) -> list[_Measured]:
    """Return a row for each metric that every run of some arm has."""
    keys = {
        (task, score.shots, metric): None
        for own in runs.values()
        for scores in own.values()
        for task, score in scores.items()
        for metric in score.metrics
    }
    measured = []
    for task, shots, metric in keys:
        arms = {
            arm: {seed: scores[task] for seed, scores in own.items()}
            for arm, own in runs.items()
            if all(task in s and s[task].shots == shots and metric in s[task].metrics for s in own.values())
        }
        if arms:
            measured.append(_measure(Row(task, shots, metric, 0, {}, {}), arms, baselines, pairs))
    return measured


def _measure(
    row: Row,
    arms: Mapping[str, Mapping[Seed, Score]],
    baselines: Mapping[str, str],
    pairs: Mapping[str, Sequence[Seed]],
) -> _Measured:
    """Return the means of `arms` and their differences from `baselines`, on the questions that all were asked; for a
    metric that is not a mean over questions, only the means over runs."""
    metric = row.metric
    answers = {arm: {s: average_by_question([score], metric) for s, score in own.items()} for arm, own in arms.items()}
    common = frozenset.intersection(*(frozenset(values) for own in answers.values() for values in own.values()))
    means = {arm: sum(score.metrics[metric] for score in own.values()) / len(own) for arm, own in arms.items()}
    parts = {}
    if common and all(metric in score.stderr for own in arms.values() for score in own.values()):
        order = sorted(common)  # some may have been asked less than others
        values = {a: {s: np.array([v[q] for q in order]) for s, v in own.items()} for a, own in answers.items()}
        means = {arm: float(np.mean(list(own.values()))) for arm, own in values.items()}
        for arm, own in values.items():
            theirs = values.get(baselines.get(arm, ""), {})
            if not theirs or len(order) < 2:
                continue
            paired = [own[seed] - theirs[seed] for seed in pairs[arm]]
            unpaired = np.mean(list(own.values()), axis=0) - np.mean(list(theirs.values()), axis=0)
            parts[arm] = decompose(np.stack(paired or [unpaired]))
    return _Measured(Row(**{**vars(row), "n": len(common), "means": means}), parts, common)


def _average_over_tasks(measured: Sequence[_Measured]) -> list[_Measured]:
    """Return a row for each metric of several tasks with differences; a task whose questions are part of another's, as
    those of a group are, counts with that."""
    averages = []
    for metric, shots in dict.fromkeys((m.row.metric, m.row.shots) for m in measured if m.parts):
        own = [m for m in measured if m.parts and (m.row.metric, m.row.shots) == (metric, shots)]
        whole = [m for m in own if not any(m.questions < other.questions for other in own)]
        if len(whole) < 2:
            continue
        means = {
            arm: math.fsum(m.row.means[arm] for m in whole) / len(whole)
            for arm in whole[0].row.means
            if all(arm in m.row.means for m in whole)
        }
        parts = {
            arm: average_tasks([m.parts[arm] for m in whole])
            for arm in whole[0].parts
            if all(arm in m.parts for m in whole)
        }
        row = Row(f"mean of {len(whole)} tasks", shots, metric, sum(m.row.n for m in whole), means, {})
        averages.append(_Measured(row, parts, frozenset()))
    return averages


# ---------------------------------------------------------------------------------------------------- section


def tabulate_downstream(downstream: Downstream) -> list[Section]:
    """Return the table of the scores, with a column or, for many arms, a row for each arm; nothing if no run was
    evaluated."""
    if not downstream.rows:
        return []
    build = _build_wide if len(downstream.runs) <= MOST_COLUMNS else _build_long
    table = build(downstream)
    return [Section("Downstream tasks", table, _state_basis(downstream, bool(table.strong)))]


def _build_wide(downstream: Downstream) -> Table:
    """Return the table with a row for each metric."""
    rows = downstream.rows
    shown = [downstream.list_shown(row) for row in rows]
    columns = [
        *_describe(rows),
        *(Column(arm, [row.means.get(arm) for row in rows]) for arm in downstream.runs),
        *(
            Column(
                f"{arm}, difference to {base}",
                [_format(row.differences.get(arm), arm in own) for row, own in zip(rows, shown, strict=True)],
            )
            for arm, base in downstream.baselines.items()
            if arm in downstream.runs
        ),
    ]
    return Table(columns, frozenset(i for i, own in enumerate(shown) if own))


def _build_long(downstream: Downstream) -> Table:
    """Return the table with a row for each metric and arm."""
    cells = [(row, arm) for row in downstream.rows for arm in row.means]
    shown = [arm in downstream.list_shown(row) for row, arm in cells]
    columns = [
        *_describe([row for row, _ in cells]),
        words("arm", (arm for _, arm in cells)),
        Column("mean", [row.means[arm] for row, arm in cells]),
        Column(
            "difference to the baseline",
            [_format(row.differences.get(arm), strong) for (row, arm), strong in zip(cells, shown, strict=True)],
        ),
    ]
    return Table(columns, frozenset(i for i, strong in enumerate(shown) if strong))


def _describe(rows: Sequence[Row]) -> list[Column]:
    return [
        words("task", (row.task for row in rows)),
        Column("shots", [row.shots for row in rows]),
        words("metric", (row.metric for row in rows)),
        Column("n", [f"{row.n:,}" for row in rows]),
    ]


def _format(difference: SeedDifference | None, shown: bool) -> str:
    if difference is None:
        return NOTHING
    if difference.interval is None:
        return format_uncertain(difference.mean, None, sign=True)
    low, high = difference.interval
    return f"{difference.mean:+.3f} [{low:+.3f}, {high:+.3f}]{' *' if shown else ''}"


def _state_basis(downstream: Downstream, any_shown: bool) -> list[str]:
    """Return the sentences below the table: the basis of the numbers, and the claims."""
    kinds = dict.fromkeys(downstream.searched, "a trial of the search")
    told = (f"{arm} {kinds.get(arm) or count_noun(n, 'fresh seed')}" for arm, n in downstream.runs.items())
    sentences = [f"n: number of questions. Runs: {', '.join(told)}."]
    compared = {arm: d for row in downstream.rows for arm, d in row.differences.items()}
    if downstream.family:
        sentences.append(
            "Differences are over questions and the seeds that both have; their intervals, in brackets, include the "
            f"variance of both. The error of 5 % covers {count_noun(downstream.family, 'comparison')}, including those "
            "of the objective in the whole file, and every look."
            + (" Bold and *: the interval excludes 0." if any_shown else " No difference is shown.")
        )
    for arm, d in compared.items():
        base = downstream.baselines[arm]
        if d.n_seeds < LEAST:
            sentences.append(
                f"{arm} and {base}: {count_noun(d.n_seeds, 'seed')} scored for both; a verdict needs {LEAST} "
                "seeds, as questions do not show the variation between seeds."
            )
        elif left := downstream.left_out.get(arm):
            sentences.append(
                f"The difference of {arm} to {base} leaves out {count_noun(left, 'seed')} of {d.n_seeds + left}, "
                "on which one of the two failed or was not scored."
            )
    tied = {
        f"{arm} on {row.task}": None
        for row in downstream.rows
        for arm, d in row.differences.items()
        if d.n_seeds >= LEAST and d.interval is None
    }
    if tied:
        sentences.append(
            "No interval if every question has the same difference on each seed, which does not show the variation "
            f"between seeds: {', '.join(tied)}."
        )
    if downstream.shared_start:
        sentences.append(f"{downstream.shared_start} Their differences are not bold.")
    return sentences
