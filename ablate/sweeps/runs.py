"""The runs of a sweep: one flat table, whatever stage they are of. Nothing here accesses a storage."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, overload

from ablate.verdict.outcomes import LOSS, Ending, Outcome, classify, classify_value

if TYPE_CHECKING:
    from ablate.verdict.questions import Score

STATUSES = ("completed", "running", "pruned", "diverged", "failed", "interrupted", "waiting")
FINISHED = ("completed", "pruned", "diverged")  # results; the budget counts these
StageName = Literal["search", "extension", "selection", "confirmation", "challenge"]
"""The stages of a sweep: the search; settings beyond its ranges; the best of both on selection seeds; the chosen
settings on fresh seeds; further settings of an arm before it is told that it lost."""
STAGES: tuple[str, ...] = get_args(StageName)
SEARCH, EXTENSION, SELECTION, FRESH, CHALLENGE = STAGES
TUNING = (SEARCH, EXTENSION)  # their runs propose settings
CHOOSING = (SEARCH, EXTENSION, SELECTION, CHALLENGE)  # their runs choose settings; a verdict rests on the others


class RungEnd(NamedTuple):
    """The result of a run at a rung: that of a copy of it."""

    updates: int
    """Length of the copy."""
    value: float
    """Its objective."""
    metrics: dict[str, float]
    """Metrics of its last validation."""
    branched: int
    """Its updates beyond those of the run."""


@dataclass(frozen=True)
class Run:
    """One training of an arm at certain settings with a seed, ended or not."""

    arm: str
    number: int
    """The number of its settings among those that the arm has searched, from 0: in the search each run has its own, and
    a further attempt keeps it."""
    status: str
    """One of STATUSES."""
    params: dict[str, Any]
    """Its settings over those of the arm, but for the seed, if that is not searched: dotted path -> value."""
    value: float | None
    """The objective; None unless completed."""
    metrics: dict[str, float]
    """Metrics of the last validation."""
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
    stage: str = SEARCH
    """One of STAGES."""
    seed: int = 0
    """Its seed, also where that is searched."""
    facts: dict[str, str] = field(default_factory=dict)
    """Corpus, hardware, precision and versions of the training; those of the last process."""
    costs: dict[str, float] = field(default_factory=dict)
    """Operations and bytes by formula, and measured bytes on a GPU."""
    layers: dict[str, list[float | None]] = field(default_factory=dict)
    """Measurements of the layers at the end: number -> its value for each layer."""
    rungs: tuple[RungEnd, ...] = ()
    """Its results at the rungs that it has ended before its end."""
    scores: dict[str, Score] = field(default_factory=dict)
    """Task -> its score, of what `ablate evaluate` measured after training. The storage does not have them."""

    @property
    def label(self) -> str:
        """Its name, in MLflow and on the screen."""
        return label_run(self.arm, self.stage, self.number, self.seed)

    @property
    def reached(self) -> float | None:
        """The objective at its end or, where it has none, at the last rung that it ended."""
        return self.rungs[-1].value if self.value is None and self.rungs else self.value

    @property
    def items(self) -> int:
        """Tokens or images that it was trained on, including those of the copies that ended its rungs."""
        return self.paid_updates * self.items_per_update

    @property
    def paid_updates(self) -> int:
        """Updates made, with those of the copies that ended its rungs."""
        return self.step + sum(rung.branched for rung in self.rungs)


def label_run(arm: str, stage: str, number: int, seed: int) -> str:
    """Return the name of a run, in MLflow and on the screen."""
    if stage in TUNING:
        return f"{arm} #{number}"
    return f"{arm}{f' #{number}' if stage in CHOOSING else ''} seed {seed}"


@dataclass(frozen=True)
class Runs(Sequence[Run]):
    """A table of runs, or a part of one."""

    rows: tuple[Run, ...] = ()
    trivial_loss: float | None = None
    """The validation loss of a predictor that ignores the inputs, in nats; None if unknown."""
    maximize: bool | None = None
    """Whether more of the objective is better, where the objective itself, and not the validation loss, is compared
    with what a run has that learned nothing."""

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Run, ...]: ...
    def __getitem__(self, index: int | slice) -> Run | tuple[Run, ...]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.rows)

    def replace(self, rows: Iterable[Run]) -> Runs:
        """Return a table of `rows`, judged by the same trivial loss."""
        return Runs(tuple(rows), self.trivial_loss, self.maximize)

    @cached_property
    def _parts(self) -> dict[tuple[str, str], list[Run]]:
        parts: dict[tuple[str, str], list[Run]] = {}
        for run in self.rows:
            parts.setdefault((run.arm, run.stage), []).append(run)
        return parts

    def select(
        self,
        arm: str | None = None,
        stage: str | Collection[str] | None = None,
        *,
        number: int | None = None,
        status: str | Collection[str] | None = None,
    ) -> Runs:
        """Return the runs of an arm, of one of certain stages, of certain settings, with one of certain statuses; None:
        all."""
        rows: Iterable[Run] = self.rows
        stages = (stage,) if isinstance(stage, str) else stage
        if arm is not None and stages is not None:
            rows = [run for one in stages for run in self._parts.get((arm, one), ())]
        statuses = (status,) if isinstance(status, str) else status
        return self.replace(
            run
            for run in rows
            if (arm is None or run.arm == arm)
            and (stages is None or run.stage in stages)
            and (number is None or run.number == number)
            and (statuses is None or run.status in statuses)
        )

    @property
    def finished(self) -> int:
        """The number of results: completed, pruned or diverged."""
        return sum(run.status in FINISHED for run in self.rows)

    def count_statuses(self) -> dict[str, int]:
        """Return the number of runs of each status."""
        statuses = [run.status for run in self.rows]
        return {status: statuses.count(status) for status in STATUSES}

    def find_best(self, direction: str) -> Run | None:
        """Return the run with the best objective, among those that have one."""
        sign = 1 if direction == "minimize" else -1
        valued = ((sign * run.value, run) for run in self.rows if run.value is not None)
        return min(valued, key=lambda pair: pair[0], default=(0.0, None))[1]

    def find_outcome(self, run: Run) -> Outcome | None:
        """Return the outcome of `run`; None if it has not ended: it is running, or it crashed and will be retried."""
        if run.status == "diverged":
            return Outcome("diverged")
        if run.status != "completed" or run.value is None:
            return None
        ending = self.classify(run.value, run.metrics) if math.isfinite(run.value) else "diverged"
        return Outcome(ending, None if ending == "diverged" else run.value)

    def list_rung_outcomes(self, run: Run) -> list[Outcome]:
        """Return the outcome of `run` at each rung that it has ended, the last its end."""
        ended = [Outcome(self.classify(rung.value, rung.metrics), rung.value) for rung in run.rungs]
        last = self.find_outcome(run)
        return [*ended, last] if last else ended

    def classify(self, value: float | None, metrics: Mapping[str, float]) -> Ending:
        """Return how a run ended that ran to its end, with this objective and these metrics there."""
        if self.maximize is None:
            return classify(metrics.get(LOSS), self.trivial_loss)
        return classify_value(value, self.trivial_loss, self.maximize)

    def outcomes(self, arm: str | None = None, stage: str | None = None) -> dict[int, Outcome]:
        """Return seed -> outcome, in the order of the seeds, of the runs that ended."""
        runs = self if arm is None and stage is None else self.select(arm, stage)
        found = {run.seed: outcome for run in runs if (outcome := self.find_outcome(run))}
        return dict(sorted(found.items()))
