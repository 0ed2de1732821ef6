"""FLOPs and bytes of arms that start from other models, and what is saved when they reach the baseline's final result
earlier. Operations and bytes are computed by `ablate.estimate.flops`; those of the source run count as the arm's own.
The operations of the searches are left out, for every arm alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ablate.reports.tokens_to_baseline import Pair, Training, bound_if_complete, list_trainings, pair_trainings
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import Run
from ablate.verdict.intervals import Estimate


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
    saved: Estimate | None
    """The share of the baseline's FLOPs that are saved until the arm reaches the baseline's final result, including its
    source runs: negative if it needs more. None for the baseline, and if the result is not reached on every seed."""


def compute_savings(record: SweepRecord) -> dict[str, Saving]:
    """Return arm -> its cost; empty if no arm starts from another model or freezes anything, or no cost is known. The
    trainings on fresh seeds are compared or, before the first of them, the best trial of each arm.
    """
    arms = [arm for arm in record.spec.all_arms if arm in record.arms]
    settings = [record.spec.experiment, *(record.spec.all_arms[arm].settings for arm in arms)]
    if not any(path.partition(".")[0] == "warm_start" for tree in settings for path in tree):
        return {}
    by_arm = {}
    for arm in arms:
        trainings = list(list_trainings(record, arm).values())
        known = [t for t in trainings if t.trial.costs.get("flops_per_update")]
        if known and all(t in known or not t.trained for t in trainings):
            by_arm[arm] = _compute_saving(known, pair_trainings(record, arm))
    return by_arm


def _compute_saving(known: Sequence[Training], pairs: Sequence[Pair]) -> Saving:
    """Return the cost of an arm, from its trainings of `known` cost and its `pairs` with the baseline."""
    trials = [training.trial for training in known]
    one = max(trials, key=lambda trial: trial.step)  # one that diverged stops early
    saved = []
    for pair in pairs:
        if pair.updates is not None:
            own = pair.own.trial
            needed = _flops_before(own) + pair.updates * own.costs["flops_per_update"]
            saved.append(1 - needed / _flops_in_all(pair.baseline.trial))
    peaks = [trial.costs["peak_memory_bytes"] for trial in trials if "peak_memory_bytes" in trial.costs]
    return Saving(
        flops_before=_flops_before(one),
        flops=one.step * one.costs["flops_per_update"],
        state_bytes=one.costs["state_bytes"],
        peak_memory_bytes=max(peaks, default=None),
        saved=bound_if_complete(saved, pairs),
    )


def _flops_before(trial: Run) -> float:
    return trial.costs.get("flops_before", 0.0)


def _flops_in_all(trial: Run) -> float:
    return _flops_before(trial) + trial.paid_updates * trial.costs["flops_per_update"]
