"""FLOPs and bytes of arms that start from other models, and how much sooner they reach where the baseline ends.

Operations and bytes are those of `ablate.estimate.flops`; the donor's count as the arm's own. The operations of
the searches are left out, for every arm alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ablate.sweeps.records import SweepRecord
from ablate.verdict.intervals import Estimate, estimate
from ablate.verdict.outcomes import TrialRecord


@dataclass(frozen=True)
class Saving:
    """One training of an arm."""

    flops_before: float
    """FLOPs of the models that it starts from."""
    flops: float
    """FLOPs of its own, to its end."""
    state_bytes: float
    """Weights, gradients and moments, by formula."""
    peak_memory_bytes: float | None
    """The most that a GPU held, as measured; None without one."""
    seeds: int
    """Trainings that are compared with the baseline's on the same seed."""
    reached: int
    """Of them, those that come to where the baseline ends."""
    at_first: int
    """Of those, the ones that are there at their first validation, and may have been before."""
    updates: Estimate | None
    """After how many updates; None for the baseline, and where not all of them get there."""
    saved: Estimate | None
    """The share of the baseline's FLOPs that are saved until then, what it starts from included: below 0 where it
    takes more. None as for `updates`."""


def compute_savings(record: SweepRecord) -> dict[str, Saving]:
    """Return arm -> what it takes; empty where no arm starts from another model or freezes anything, or none is known.

    Compared are the trainings on fresh seeds, or where there are none the best trial of each arm.
    """
    arms = [arm for arm in record.spec.all_arms if arm in record.trials]
    settings = [record.spec.experiment, *(record.spec.all_arms[arm].settings for arm in arms)]
    if not any(path.partition(".")[0] == "warm_start" for tree in settings for path in tree):
        return {}
    runs = {arm: _list_trainings(record, arm) for arm in arms}
    baseline = runs.get(record.spec.compared_with, {})
    by_arm = {}
    for arm, trainings in runs.items():
        if trainings and all(t.costs.get("flops_per_update") for t in trainings.values()):
            compared = {} if arm == record.spec.compared_with else baseline
            by_arm[arm] = _compute_saving(trainings, compared, record.spec.objective.direction == "minimize")
    return by_arm


def _list_trainings(record: SweepRecord, arm: str) -> dict[Any, TrialRecord]:
    """Return seed -> completed training of an arm at its best settings; of a search alone its best trial."""
    fresh = {t.params["seed"]: t for t in record.confirmed.get(arm, ()) if t.status == "completed"}
    best = record.best(arm)
    return fresh or ({"search": best} if best else {})


def _compute_saving(
    runs: Mapping[Any, TrialRecord], baseline: Mapping[Any, TrialRecord], less_is_better: bool
) -> Saving:
    one = next(iter(runs.values()))
    pairs = [(runs[seed], baseline[seed]) for seed in runs if seed in baseline]
    updates, saved, at_first = [], [], 0
    for own, other in pairs:
        needed = None if other.value is None else find_update_at_goal(own.curve, other.value, less_is_better)
        if needed is not None:
            updates.append(needed)
            at_first += needed == min(own.curve)
            saved.append(1 - (_flops_before(own) + needed * own.costs["flops_per_update"]) / _flops_in_all(other))
    everywhere = bool(pairs) and len(saved) == len(pairs)
    peaks = [t.costs["peak_memory_bytes"] for t in runs.values() if "peak_memory_bytes" in t.costs]
    return Saving(
        flops_before=_flops_before(one),
        flops=one.step * one.costs["flops_per_update"],
        state_bytes=one.costs["state_bytes"],
        peak_memory_bytes=max(peaks, default=None),
        seeds=len(pairs),
        reached=len(saved),
        at_first=at_first,
        updates=estimate(updates) if everywhere else None,
        saved=estimate(saved) if everywhere else None,
    )


def _flops_before(trial: TrialRecord) -> float:
    return trial.costs.get("flops_before", 0.0)


def _flops_in_all(trial: TrialRecord) -> float:
    return _flops_before(trial) + trial.step * trial.costs["flops_per_update"]


def find_update_at_goal(curve: Mapping[int, float], goal: float, less_is_better: bool = True) -> float | None:
    """Return the updates after which a curve (updates -> objective) first is at `goal` or better, on a straight line
    between two validations; None where it never is."""
    sign = 1 if less_is_better else -1
    before: tuple[int, float] | None = None
    for step, value in sorted(curve.items()):
        if sign * value <= sign * goal:
            if before is None or value == goal:
                return float(step)
            return before[0] + (step - before[0]) * (before[1] - goal) / (before[1] - value)
        before = (step, value)
    return None
