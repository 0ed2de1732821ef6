"""The confirmation of a sweep, out of its record."""

from __future__ import annotations

from collections.abc import Mapping

from ablate.reports.labels import name_unit
from ablate.sweeps.records import SweepRecord
from ablate.verdict.confirmation import Confirmed, FreshSeeds, compare, state_verdict


def compare_arms(record: SweepRecord) -> dict[str, Confirmed]:
    """Return each confirmed arm with its difference from the baseline; empty where none is confirmed or is to be."""
    target = record.spec.confirm.seeds
    if not target:
        return {}
    arms = {}
    for arm, trials in record.confirmed.items():
        best = record.best(arm)
        arms[arm] = FreshSeeds(
            {t.params["seed"]: t.value for t in trials if t.value is not None},
            sum(t.status == "diverged" for t in trials),
            best.params if best else {},
        )
    return compare(arms, record.spec.compared_with, target)


def describe_confirmed(record: SweepRecord, confirmed: Mapping[str, Confirmed]) -> str:
    """Return the sentences that may be said of the arms in `confirmed`."""
    spec = record.spec
    maximize = spec.objective.direction == "maximize"
    return state_verdict(
        confirmed, spec.compared_with, unit=name_unit(spec), effect=spec.confirm.effect, maximize=maximize
    )
