"""Scores on downstream tasks that were stored after training, as metrics of the trainings of each arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ablate.tracking.scores import name_metrics
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
