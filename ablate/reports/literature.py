"""Published figures beside ours: to be looked at together, never mixed into what our own runs show."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ablate.config.errors import ConfigError
from ablate.sweeps.records import SweepRecord
from ablate.verdict.intervals import Estimate, estimate, estimate_difference
from ablate.verdict.outcomes import TrialRecord

CONFIRMED, SEARCHED = "confirmed", "best of the search"


@dataclass(frozen=True)
class PublishedRow:
    """A published figure of an arm and ours."""

    arm: str
    ours: Estimate | None
    """Over the fresh seeds where the arm is confirmed, else of the one best trial; None without the metric."""
    kind: str
    """CONFIRMED or SEARCHED, which of the two; '' without one."""
    published: float
    difference: Estimate | None
    """Ours less our baseline's, in pairs where both are confirmed; None where they are not of one kind."""
    published_difference: float | None
    """Theirs less theirs; None for the baseline and where theirs is not given."""


@dataclass(frozen=True)
class PublishedTable:
    """The figures of one paper."""

    source: str
    metric: str
    rows: list[PublishedRow]
    tokenizers: tuple[str, str] | None = None
    """(theirs, ours) where the figures are by another tokenizer than ours, and cannot be compared."""


def compare_published(record: SweepRecord) -> list[PublishedTable]:
    """Return the figures that the sweep file quotes, beside ours."""
    tables, baseline = [], record.spec.compared_with
    for entry in record.spec.published:
        ours = {arm: _measure_arm(record, arm, entry.metric) for arm in {baseline, *entry.values}}
        base_kind, base = ours[baseline]
        rows = []
        for arm, value in entry.values.items():
            kind, values = ours[arm]
            alike = arm != baseline and kind == base_kind and bool(values)
            less = estimate_difference(values, base) if alike else None
            theirs = value - entry.values[baseline] if arm != baseline and baseline in entry.values else None
            own = estimate(list(values.values())) if values else None
            rows.append(PublishedRow(arm, own, kind, value, less.estimate if less else None, theirs))
        own_tokenizer = _name_tokenizer(record)
        other = entry.tokenizer is not None and own_tokenizer not in (None, entry.tokenizer)
        tokenizers = (str(entry.tokenizer), str(own_tokenizer)) if other else None
        tables.append(PublishedTable(entry.source, entry.metric, rows, tokenizers))
    return tables


def _name_tokenizer(record: SweepRecord) -> str | None:
    """Return the tokenizer of the sweep, or the name of data that has none of its own; None where it cannot be told."""
    try:
        data = record.spec.base(record.spec.compared_with).data
    except ConfigError:  # a plugin is missing
        return None
    return str(getattr(data, "tokenizer", data.kind))


def _measure_arm(record: SweepRecord, arm: str, metric: str) -> tuple[str, dict[int, float]]:
    """Return what `arm` reached: (kind, seed -> value), of the search under the seed 0; ('', {}) without the metric."""
    fresh = _collect_values(record.confirmed.get(arm, ()), metric, record)
    if fresh:
        return CONFIRMED, fresh
    best = record.best(arm) if arm in record.trials else None
    tried = _collect_values([best] if best else [], metric, record)
    return (SEARCHED, {0: next(iter(tried.values()))}) if tried else ("", {})


def _collect_values(trials: Iterable[TrialRecord], metric: str, record: SweepRecord) -> dict[int, float]:
    """Return seed -> `metric`, of the trials that completed."""
    is_objective = metric == record.spec.objective.metric
    pairs = (
        (t.params.get("seed", 0), t.value if is_objective else t.metrics.get(metric))
        for t in trials
        if t.status == "completed"
    )
    return {seed: value for seed, value in pairs if value is not None and math.isfinite(value)}
