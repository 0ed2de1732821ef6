"""Runs of a sweep as plain values of a bundle, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ablate.ledger.schema import Run, Rung
from ablate.tracking.provenance import COMPARED
from ablate.verdict.outcomes import FINISHED, RungEnd, TrialRecord, read_outcome

PUBLISHED = (*FINISHED, "failed")
"""Statuses of runs that have ended."""


@dataclass
class Surroundings:
    """The combinations of hardware, versions and corpus, each numbered as it first comes."""

    known: list[dict[str, str]] = field(default_factory=list)

    def number(self, facts: Mapping[str, str]) -> int:
        """Return the number of the facts that should be the same in all runs."""
        kept = {key: str(facts[key]) for key in COMPARED if key in facts}
        if kept not in self.known:
            self.known.append(kept)
        return self.known.index(kept)


def to_runs(trials: Iterable[TrialRecord], trivial_loss: float | None, surroundings: Surroundings) -> list[Run]:
    """Return those of `trials` that have ended."""
    return [to_run(trial, trivial_loss, surroundings) for trial in trials if trial.status in PUBLISHED]


def to_run(trial: TrialRecord, trivial_loss: float | None, surroundings: Surroundings) -> Run:
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
        surroundings=surroundings.number(trial.facts),
    )


def to_trial(run: Run, arm: str, surroundings: list[dict[str, str]]) -> TrialRecord:
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
        facts=surroundings[run.surroundings],
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
    )


def _to_finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _from_null(value: float | None) -> float:
    return math.nan if value is None else value
