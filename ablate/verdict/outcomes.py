"""How trials and seeds end: the record of a trial, its statuses, the outcome of a seed, and the best of several."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ablate.config.formatting import format_number

if TYPE_CHECKING:
    from ablate.verdict.questions import Score

STATUSES = ("completed", "running", "pruned", "diverged", "failed", "interrupted", "waiting")
FINISHED = ("completed", "pruned", "diverged")  # results; the budget counts these
LEARNED = 0.02
"""Share of the trivial loss by which a run's last validation loss must be below it; otherwise the run is stuck."""
LOSS = "val/loss"
Ending = Literal["trained", "stuck", "diverged"]


class RungEnd(NamedTuple):
    """How a trial stood at a rung: what a copy of it reached there."""

    updates: int
    """Length of the copy."""
    value: float
    """Its objective."""
    metrics: dict[str, float]
    """Those of its last validation."""
    branched: int
    """Its updates beside those of the trial."""


@dataclass(frozen=True)
class TrialRecord:
    """The record of one trial, finished or not."""

    arm: str
    number: int
    """Its number among the trials of the arm, from 0; a further attempt keeps it. Optuna counts the attempts."""
    status: str
    """One of STATUSES."""
    params: dict[str, Any]
    """The searched settings: dotted path -> value."""
    value: float | None
    """The objective; None unless completed."""
    metrics: dict[str, float]
    """Those of the last validation."""
    curve: dict[int, float]
    """Updates -> objective, at each validation."""
    step: int
    """Updates made."""
    seconds: float | None
    """Wall-clock seconds of all processes that worked on it and recorded their time."""
    run_id: str | None
    """Its MLflow run."""
    reason: str
    """Why it diverged, was pruned or failed."""
    items_per_update: int = 1
    """Tokens or images of one update."""
    facts: dict[str, str] = field(default_factory=dict)
    """Corpus, hardware, precision and versions of the training; those of the last process."""
    costs: dict[str, float] = field(default_factory=dict)
    """Operations and bytes by formula, and measured bytes on a GPU."""
    layers: dict[str, list[float | None]] = field(default_factory=dict)
    """What was measured of the layers at the end: number -> its value for each layer."""
    rungs: tuple[RungEnd, ...] = ()
    """How it stood at each rung that it has ended before its end."""
    scores: dict[str, Score] = field(default_factory=dict)
    """Task -> its score, of what `ablate evaluate` measured after training. The storage does not have them."""

    @property
    def reached(self) -> float | None:
        """The objective at its end or, where it has none, at the last rung that it ended."""
        return self.rungs[-1].value if self.value is None and self.rungs else self.value

    @property
    def items(self) -> int:
        """Tokens or images that it was trained on, the copies included that ended its rungs."""
        return self.paid_updates * self.items_per_update

    @property
    def paid_updates(self) -> int:
        """Updates made, with those of the copies that ended its rungs."""
        return self.step + sum(rung.branched for rung in self.rungs)


def pick_best(trials: Iterable[TrialRecord], direction: str) -> TrialRecord | None:
    """Return the trial with the best objective, among those that have one."""
    sign = 1 if direction == "minimize" else -1
    valued = ((sign * trial.value, trial) for trial in trials if trial.value is not None)
    return min(valued, key=lambda pair: pair[0], default=(0.0, None))[1]


def count_finished(trials: Iterable[TrialRecord]) -> int:
    """Return how many of `trials` are results: completed, pruned or diverged."""
    return sum(trial.status in FINISHED for trial in trials)


@dataclass(frozen=True)
class Outcome:
    """How one seed ended. A failure is an outcome too, and stays in the comparison."""

    ending: Ending
    """trained; stuck: it ran to its end without learning; diverged."""
    value: float | None = None
    """The objective; None if it diverged."""

    @property
    def trained(self) -> bool:
        """Whether it trained, so that its value counts."""
        return self.ending == "trained"


def classify(loss: float | None, trivial_loss: float | None) -> Ending:
    """Return the outcome of a run that ended with the validation loss `loss`.

    Args:
        loss: the last validation loss; None: it has none, and is trained.
        trivial_loss: the loss of a predictor that ignores its inputs, such as one that knows the frequencies of tokens
            or classes. None: unknown; nothing is called stuck.
    """
    if loss is None:
        return "trained"
    if not math.isfinite(loss):
        return "diverged"
    known = trivial_loss is not None and trivial_loss > 0
    return "stuck" if known and loss >= (1 - LEARNED) * (trivial_loss or 0.0) else "trained"


def read_outcome(trial: TrialRecord, trivial_loss: float | None) -> Outcome | None:
    """Return the outcome of `trial`'s seed; None if it has not ended: it is running, or it crashed and will be
    retried."""
    if trial.status == "diverged":
        return Outcome("diverged")
    if trial.status != "completed" or trial.value is None:
        return None
    ending = classify(trial.metrics.get(LOSS), trivial_loss) if math.isfinite(trial.value) else "diverged"
    return Outcome(ending, None if ending == "diverged" else trial.value)


def read_rung_outcomes(trial: TrialRecord, trivial_loss: float | None) -> list[Outcome]:
    """Return the outcome of `trial` at each rung that it has ended, the last its end."""
    ended = [Outcome(classify(rung.metrics.get(LOSS), trivial_loss), rung.value) for rung in trial.rungs]
    last = read_outcome(trial, trivial_loss)
    return [*ended, last] if last else ended


def state_rule(trivial_loss: float | None) -> str:
    """Return the sentence that defines a failure."""
    if trivial_loss is None:
        return (
            "A seed fails when it diverges. Whether a seed that ran to its end has learned is unknown, since the "
            "trivial loss is unknown."
        )
    return (
        "A seed fails when it diverges or is stuck: it ends at a validation loss of "
        f"{format_number((1 - LEARNED) * trivial_loss)} or more, {100 * (1 - LEARNED):.0f} % of the trivial loss of "
        f"{format_number(trivial_loss)}, that of a predictor that ignores its inputs."
    )
