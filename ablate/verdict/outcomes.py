"""How trials end: the record of one, its statuses, and the best of several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

STATUSES = ("completed", "running", "pruned", "diverged", "failed", "interrupted", "waiting")
FINISHED = ("completed", "pruned", "diverged")  # results; the budget counts these


@dataclass(frozen=True)
class TrialRecord:
    """One trial, as far as it got."""

    arm: str
    number: int
    """Its place among the trials of the arm, from 0; a further attempt keeps it. Optuna counts the attempts."""
    status: str
    """One of STATUSES."""
    params: dict[str, Any]
    """What was searched: dotted path -> value."""
    value: float | None
    """The objective; None unless completed."""
    metrics: dict[str, float]
    """Those of the last validation."""
    curve: dict[int, float]
    """Updates -> objective, at each validation."""
    step: int
    """Updates made."""
    seconds: float | None
    """Wall-clock seconds that it took, of all processes that worked on it and lived to say so."""
    run_id: str | None
    """Its MLflow run."""
    reason: str
    """Why it diverged, was pruned or failed."""
    items_per_update: int = 1
    """Tokens or images of one update."""
    facts: dict[str, str] = field(default_factory=dict)
    """Where and how it was trained: corpus, hardware, precision, versions; those of the last process."""
    costs: dict[str, float] = field(default_factory=dict)
    """Operations and bytes by formula, and bytes as measured on a GPU."""

    @property
    def items(self) -> int:
        """Tokens or images that it was trained on."""
        return self.step * self.items_per_update


def pick_best(trials: Iterable[TrialRecord], direction: str) -> TrialRecord | None:
    """The trial with the best objective, of those that have one."""
    sign = 1 if direction == "minimize" else -1
    valued = ((sign * trial.value, trial) for trial in trials if trial.value is not None)
    return min(valued, key=lambda pair: pair[0], default=(0.0, None))[1]


def count_finished(trials: Iterable[TrialRecord]) -> int:
    """How many of `trials` are results: completed, pruned or diverged."""
    return sum(trial.status in FINISHED for trial in trials)
