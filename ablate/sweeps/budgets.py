"""The cost of runs in tokens or images, FLOPs or seconds, and their objective at equal cost. Nothing here accesses a
storage."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import fmean

from ablate.config.formatting import count_noun
from ablate.sweeps.records import SweepRecord, compute_once
from ablate.sweeps.runs import CHOOSING, Run, Runs
from ablate.verdict.outcomes import Outcome

ITEMS, FLOPS, SECONDS = "tokens", "flops", "seconds"
AXES = (ITEMS, FLOPS, SECONDS)
"""Costs, as `compare.at` names them."""
_PLACES = ("ablate.hardware", "ablate.processor", "ablate.threads", "ablate.ranks")
"""Facts that make the seconds of two runs comparable."""


def find_cost(run: Run, updates: float, axis: str) -> float | None:
    """Return the cost of `run` up to so many updates, that of models that it starts from included in FLOPs; None if it
    is not known."""
    if axis == ITEMS:
        return updates * run.items_per_update
    each = run.costs.get("flops_per_update" if axis == FLOPS else "seconds_per_update")
    before = run.costs.get("flops_before", 0.0) if axis == FLOPS else 0.0
    return None if not each else before + updates * each


def find_updates(run: Run, cost: float, axis: str) -> float:
    """Return the updates after which `run`, whose costs are known, has cost so much."""
    begin, each = find_cost(run, 0, axis) or 0.0, find_cost(run, 1, axis) or 0.0
    return (cost - begin) / (each - begin)


def read_at(run: Run, updates: float) -> float | None:
    """Return the objective of `run` after so many updates, interpolated between two validations; None before the
    first, and beyond its end."""
    if run.value is not None and abs(updates - run.step) <= 1e-9 * run.step:
        return run.value
    for (left, before), (right, after) in pairwise(sorted(run.curve.items())):
        if left <= updates <= right:
            return before + (after - before) * (updates - left) / (right - left)
    return None


def _list_compared(record: SweepRecord) -> list[Run]:
    """Return the runs on which a verdict rests, those that have come to their end."""
    return [run for run in record.runs if run.stage not in CHOOSING and run.status == "completed"]


def refuse_seconds(record: SweepRecord) -> str:
    """Return why the seconds of a sweep's runs are not comparable, as a clause; '' if they are."""
    runs = _list_compared(record)
    unknown = sum("seconds_per_update" not in run.costs or "company" not in run.costs for run in runs)
    if unknown:
        return f"{unknown} of {count_noun(len(runs), 'run')} were interrupted, or did not record their seconds"
    if shared := sum(run.costs["company"] > 0 for run in runs):
        return f"{shared} of {count_noun(len(runs), 'run')} shared their machine with other trainings"
    for fact in _PLACES:
        if len(values := dict.fromkeys(run.facts.get(fact, "unknown") for run in runs)) > 1:
            return f"the runs differ in {fact.removeprefix('ablate.')}: {'; '.join(values)}"
    return ""


@compute_once
def find_budget(record: SweepRecord) -> float | None:
    """Return the largest cost, along `compare.at`, that all runs on fresh seeds have reached; None if arms are compared
    at their end, or it is not known."""
    axis = record.spec.compare.at
    if axis == "end" or (axis == SECONDS and refuse_seconds(record)):
        return None
    costs = [find_cost(run, run.step, axis) for run in _list_compared(record)]
    return None if None in costs else min((cost for cost in costs if cost), default=None)


def read_outcomes(record: SweepRecord, runs: Runs) -> dict[int, Outcome]:
    """Return seed -> outcome of `runs` of one arm that ended, with the objective at the end or, along `compare.at`, at
    the largest cost that all arms have reached; empty if that cannot be read."""
    outcomes = runs.outcomes()
    if record.spec.compare.at == "end":
        return outcomes
    budget, by_seed = find_budget(record), {run.seed: run for run in runs}
    if budget is None:
        return {}
    read: dict[int, Outcome] = {}
    for seed, outcome in outcomes.items():
        run = by_seed[seed]
        if outcome.trained:
            value = read_at(run, min(find_updates(run, budget, record.spec.compare.at), run.step))
            if value is None:
                continue
            outcome = replace(outcome, value=value)
        read[seed] = outcome
    return read


def list_early(record: SweepRecord) -> dict[str, float]:
    """Return arm -> the share of its updates after which it is read, of those that are read before their end."""
    budget, axis = find_budget(record), record.spec.compare.at
    if budget is None:
        return {}
    shares: dict[str, list[float]] = {}
    for run in _list_compared(record):
        shares.setdefault(run.arm, []).append(find_updates(run, budget, axis) / run.step)
    return {arm: mean for arm, own in shares.items() if (mean := fmean(own)) < 0.995}
