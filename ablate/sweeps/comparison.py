"""The arms of a sweep on fresh seeds, compared with the baseline: its record, put to the verdict."""

from __future__ import annotations

from ablate.sweeps.records import SweepRecord
from ablate.verdict.comparison import compare
from ablate.verdict.looks import Looks
from ablate.verdict.outcomes import Outcome, count_finished
from ablate.verdict.records import Compared, Crossed, Family, FreshOutcomes

COUNTING = ("accuracy", "win_rate")
"""Metrics that are shares of the validation items, by the last part of their names."""


def compare_record(record: SweepRecord) -> dict[str, Compared]:
    """Return what may be said of each arm against the baseline; empty as long as no fresh seed was begun."""
    spec = record.spec
    if not any(record.confirmed.values()):
        return {}
    return compare(
        {arm: _read_arm(record, arm) for arm in record.trials},
        spec.compared_with,
        planned=spec.confirm.most_seeds,
        maximize=spec.objective.direction == "maximize",
        effect=spec.confirm.effect,
        resolution=find_resolution(record),
        shared=tuple(spec.search),
        family=Family(getattr(spec, "family", None) or 0),
    )


def find_resolution(record: SweepRecord) -> float:
    """Return the step of an objective that counts validation items; 0 for one that does not count, or none known."""
    counts = record.spec.objective.metric.rpartition("/")[2] in COUNTING
    return 1 / record.validation_items if counts and record.validation_items else 0.0


def _read_arm(record: SweepRecord, arm: str) -> FreshOutcomes:
    outcomes = record.read_outcomes(record.confirmed.get(arm, ()))
    settled, crossed = record.settled(arm), record.crossed.get(arm)
    open_search = count_finished(record.trials[arm]) < record.target(arm)
    return FreshOutcomes(
        outcomes,
        settled.params if settled else {},
        record.looks.get(arm) or _count_one_look(record, outcomes),
        Crossed(crossed.loser, record.read_outcomes(crossed.runs), crossed.params) if crossed else None,
        found=settled is not None or open_search,
    )


def _count_one_look(record: SweepRecord, outcomes: dict[int, Outcome]) -> Looks | None:
    """Return one look at the seeds that there are, of a store that has no looks on record; None before all that are
    planned have ended."""
    planned = record.spec.confirm.most_seeds
    return Looks((len(outcomes),), len(outcomes)) if outcomes and len(outcomes) >= planned else None
