"""What the arms do on fresh seeds, compared in pairs with the baseline: the figures that a sweep may be quoted by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ablate.config.formatting import number, plural
from ablate.reports.labels import unit
from ablate.sweeps.records import SweepRecord
from ablate.verdict.intervals import Difference, Estimate, difference, estimate, holm, seeds_needed


@dataclass(frozen=True)
class Confirmed:
    """An arm at its best settings, on fresh seeds."""

    estimate: Estimate | None
    """Of the objective, over the seeds that completed; None where none did."""
    diverged: int
    """Seeds on which it diverged."""
    target: int
    """Seeds that there are to be."""
    params: dict[str, Any]
    """The settings."""
    difference: Difference | None
    """Its objective less the baseline's, over the seeds that completed for both; None for the baseline itself."""


def confirmations(record: SweepRecord) -> dict[str, Confirmed]:
    """Arm -> how it was confirmed; empty where nothing is, or is to be."""
    if not record.spec.confirm.seeds or not record.confirmed:
        return {}
    values = {
        arm: {t.params["seed"]: t.value for t in trials if t.value is not None}
        for arm, trials in record.confirmed.items()
    }
    baseline = values.get(record.spec.compared_with, {})
    differences = holm({arm: difference(v, baseline) for arm, v in values.items() if arm != record.spec.compared_with})
    found = {}
    for arm, trials in record.confirmed.items():
        best = record.best(arm)
        found[arm] = Confirmed(
            estimate(list(values[arm].values())) if values[arm] else None,
            sum(t.status == "diverged" for t in trials),
            record.spec.confirm.seeds,
            best.params if best else {},
            differences.get(arm),
        )
    return found


def spoken(found: Estimate, sign: bool = False) -> str:
    """'2.1533 +- 0.0121'; the mean alone where there is no interval."""
    mean = f"{found.mean:+.4f}" if sign else number(found.mean)
    return mean if found.half_width is None else f"{mean} +- {found.half_width:.4f}"


def verdict(record: SweepRecord, confirmed: Mapping[str, Confirmed]) -> str:
    """One sentence for each arm but the baseline: what it is better or worse by, or what it would take to know."""
    baseline = record.spec.compared_with
    compared = {arm: c.difference for arm, c in confirmed.items() if c.difference is not None}
    if not compared:
        return ""
    better = -1 if record.spec.objective.direction == "minimize" else 1
    tests = sum(d.p is not None for d in compared.values())
    sentences = []
    for arm, d in compared.items():
        size, n = abs(d.estimate.mean), d.estimate.n
        if d.shown:
            word = "beats" if d.estimate.mean * better > 0 else "is worse than"
            amount = f"{number(size)} +- {d.estimate.half_width:.4f} {unit(record.spec)}"
            text = f"{arm} {word} {baseline} by {amount} (n = {n}, p = {d.adjusted_p:.2g})"
        else:
            text = f"{arm} and {baseline}: no difference that {plural(n, 'seed')} can show"
            sought = record.spec.confirm.effect or size
            needed = None if d.estimate.sd is None else seeds_needed(d.estimate.sd, sought, tests)
            if needed:
                text += f"; n >= {needed} would be needed for one of {sought:.2g} {unit(record.spec)}"
        sentences.append(f"{text}.")
    sentences += [
        f"{arm} diverged on {c.diverged} of {plural(c.target, 'seed')}, which its figures leave out."
        for arm, c in confirmed.items()
        if c.diverged
    ]
    text = "On fresh seeds, each at its best settings: " + " ".join(sentences)
    return f"{text} p is corrected for {plural(tests, 'comparison')} (Holm)." if tests > 1 else text


def to_dict(confirmed: Confirmed) -> dict[str, Any]:
    """Plain values, for JSON."""
    d = confirmed.difference
    return {
        "estimate": asdict(confirmed.estimate) if confirmed.estimate else None,
        "diverged": confirmed.diverged,
        "target": confirmed.target,
        "params": confirmed.params,
        "difference": {**asdict(d.estimate), "p": d.p, "adjusted_p": d.adjusted_p} if d else None,
    }
