"""Scores on downstream tasks that were stored after training: those of a sweep's runs, and as metrics of each arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import Run
from ablate.tracking.scores import name_metrics, read_scores
from ablate.verdict.questions import Score

Seed = int | None
"""None: the seed of the search, for the trial that represents an arm."""
Runs = dict[str, dict[Seed, dict[str, Score]]]
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


def find_scored_runs(record: SweepRecord) -> Runs:
    """Return the scored runs of each arm on fresh seeds that trained; of an arm without any, the trial that represents
    it in the search, if that was scored."""
    runs: Runs = {}
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


def collect_scores(runs: Runs) -> StoredScores:
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
