"""FLOPs and bytes of arms that start from other models, and how much earlier they reach the baseline's final result.
Operations and bytes are computed by `ablate.estimate.flops`; those of the source run count as the arm's own. The
operations of the searches are left out, for every arm alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ablate.sweeps.comparison import read_outcomes
from ablate.sweeps.records import SweepRecord
from ablate.verdict.failures import ALPHA
from ablate.verdict.intervals import Estimate, bound_mean
from ablate.verdict.outcomes import FINISHED, TrialRecord


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
    """Measured peak memory of a GPU; None without a GPU."""
    seeds: int
    """Trainings that are compared with the baseline's on the same seed, failed ones too; without those on which the
    baseline failed and has no final result."""
    left_out: int
    """Seeds on which the baseline failed."""
    reached: int
    """Number of them that reach the baseline's final result; failed trainings do not."""
    at_first: int
    """Number of those that reach it at their first validation, and may have reached it earlier."""
    updates: Estimate | None
    """Number of updates until then; None for the baseline, and if not all of them reach it."""
    saved: Estimate | None
    """The share of the baseline's FLOPs that are saved until then, including its source runs: negative if it needs
    more. None as for `updates`."""


def compute_savings(record: SweepRecord) -> dict[str, Saving]:
    """Return arm -> its cost; empty if no arm starts from another model or freezes anything, or no cost is known. The
    trainings on fresh seeds are compared or, before the first of them, the best trial of each arm.
    """
    arms = [arm for arm in record.spec.all_arms if arm in record.trials]
    settings = [record.spec.experiment, *(record.spec.all_arms[arm].settings for arm in arms)]
    if not any(path.partition(".")[0] == "warm_start" for tree in settings for path in tree):
        return {}
    runs = {arm: _list_trainings(record, arm) for arm in arms}
    baselines = record.spec.baselines
    by_arm = {}
    for arm, trainings in runs.items():
        known = {seed: t for seed, t in trainings.items() if t.trial.costs.get("flops_per_update")}
        if known and all(seed in known or not t.trained for seed, t in trainings.items()):
            compared = {} if arm == baselines[arm] else runs.get(baselines[arm], {})
            by_arm[arm] = _compute_saving(trainings, compared, record.spec.objective.direction == "minimize")
    return by_arm


@dataclass(frozen=True)
class _Training:
    trial: TrialRecord
    trained: bool
    """Whether it neither diverged nor got stuck."""


def _list_trainings(record: SweepRecord, arm: str) -> dict[Any, _Training]:
    """Return seed -> training of an arm at its chosen settings that ended; before any fresh seed its best trial."""
    outcomes = read_outcomes(record.confirmed.get(arm, ()), record.trivial_loss)
    fresh = {t.params["seed"]: t for t in record.confirmed.get(arm, ()) if t.status in FINISHED}
    if outcomes:
        return {seed: _Training(fresh[seed], outcome.trained) for seed, outcome in outcomes.items()}
    best = record.best(arm)
    return {"search": _Training(best, True)} if best else {}


def _compute_saving(runs: Mapping[Any, _Training], baseline: Mapping[Any, _Training], less_is_better: bool) -> Saving:
    known = [t.trial for t in runs.values() if t.trial.costs.get("flops_per_update")]
    one = max(known, key=lambda trial: trial.step)  # one that diverged stops early
    pairs = [(runs[seed], baseline[seed]) for seed in runs if seed in baseline and baseline[seed].trained]
    updates, saved, at_first = [], [], 0
    for training, base in pairs:
        own, other = training.trial, base.trial
        needed = None
        if training.trained and other.value is not None:
            needed = find_update_at_goal(own.curve, other.value, less_is_better)
        if needed is not None:
            updates.append(needed)
            at_first += needed == min(own.curve)
            saved.append(1 - (_flops_before(own) + needed * own.costs["flops_per_update"]) / _flops_in_all(other))
    everywhere = bool(pairs) and len(saved) == len(pairs)
    peaks = [t.costs["peak_memory_bytes"] for t in known if "peak_memory_bytes" in t.costs]
    return Saving(
        flops_before=_flops_before(one),
        flops=one.step * one.costs["flops_per_update"],
        state_bytes=one.costs["state_bytes"],
        peak_memory_bytes=max(peaks, default=None),
        seeds=len(pairs),
        left_out=sum(seed in baseline and not baseline[seed].trained for seed in runs),
        reached=len(saved),
        at_first=at_first,
        updates=bound_mean(updates, ALPHA) if everywhere else None,
        saved=bound_mean(saved, ALPHA) if everywhere else None,
    )


def _flops_before(trial: TrialRecord) -> float:
    return trial.costs.get("flops_before", 0.0)


def _flops_in_all(trial: TrialRecord) -> float:
    return _flops_before(trial) + trial.step * trial.costs["flops_per_update"]


def find_update_at_goal(curve: Mapping[int, float], goal: float, less_is_better: bool = True) -> float | None:
    """Return the updates after which a curve (updates -> objective) first reaches `goal`, interpolated between two
    validations; None if it never does."""
    sign = 1 if less_is_better else -1
    before: tuple[int, float] | None = None
    for step, value in sorted(curve.items()):
        if sign * value <= sign * goal:
            if before is None or value == goal:
                return float(step)
            return before[0] + (step - before[0]) * (before[1] - goal) / (before[1] - value)
        before = (step, value)
    return None
