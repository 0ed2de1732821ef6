"""Published results next to this sweep's: shown together, never mixed into this sweep's comparisons."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ablate.config.errors import ConfigError
from ablate.experiment.metrics import read_metric
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.records import SweepRecord
from ablate.verdict.failures import ALPHA, FailureShare
from ablate.verdict.intervals import Estimate, bound_mean
from ablate.verdict.looks import find_last_level
from ablate.verdict.outcomes import Outcome, TrialRecord
from ablate.verdict.pairing import pair_outcomes
from ablate.verdict.records import Compared

CONFIRMED, SEARCHED = "fresh seeds", "best of the search"


@dataclass(frozen=True)
class PublishedRow:
    """A published result of an arm and this sweep's."""

    arm: str
    ours: Estimate | None
    """Over the fresh seeds on which it trained; before the first fresh seed, from the best trial of the search. None
    without the metric, and if no seed trained."""
    kind: str
    """CONFIRMED or SEARCHED, which of the two; '' without one."""
    failures: FailureShare | None
    """Of the fresh seeds."""
    published: float
    difference: Estimate | None
    """Ours minus our baseline's, in pairs of seeds on which both trained; None if they are of different kinds."""
    published_difference: float | None
    """The published result minus the published baseline; None for the baseline and if the latter is not given."""


@dataclass(frozen=True)
class PublishedTable:
    """The figures of one paper."""

    source: str
    metric: str
    rows: list[PublishedRow]
    tokenizers: tuple[str, str] | None = None
    """(theirs, ours) if the published results use another tokenizer and cannot be compared."""


def compare_published(record: SweepRecord) -> list[PublishedTable]:
    """Return the results that the sweep file quotes, next to this sweep's."""
    tables, baseline, compared = [], record.spec.compared_with, compare_record(record)
    for entry in record.spec.published:
        ours = {arm: _measure_arm(record, arm, entry.metric, compared.get(arm)) for arm in {baseline, *entry.values}}
        rows = []
        for arm, value in entry.values.items():
            theirs = value - entry.values[baseline] if arm != baseline and baseline in entry.values else None
            own = ours[arm]
            difference = _subtract(own, ours[baseline], compared.get(arm)) if arm != baseline else None
            rows.append(PublishedRow(arm, own.estimate, own.kind, own.failures, value, difference, theirs))
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


@dataclass(frozen=True)
class _Measured:
    """What an arm reached."""

    kind: str = ""
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """Seed -> outcome, its value the metric's; of the search under the seed 0."""
    estimate: Estimate | None = None
    failures: FailureShare | None = None


def _measure_arm(record: SweepRecord, arm: str, metric: str, known: Compared | None) -> _Measured:
    """Return what `arm` reached: on fresh seeds as soon as one has ended, however it did, else in the search."""
    if known is None or not known.outcomes:
        best = record.best(arm) if arm in record.trials else None
        value = _read_metric(best, metric, record) if best else None
        if value is None:
            return _Measured()
        return _Measured(SEARCHED, {0: Outcome("trained", value)}, bound_mean([value], 0.0))
    looks = known.looks
    trials = {t.params["seed"]: t for t in record.confirmed.get(arm, ()) if t.status == "completed"}
    counted = dict(list(known.outcomes.items())[: looks.sizes[-1] if looks else None])
    values = {seed: _read_metric(trials[seed], metric, record) for seed, one in counted.items() if one.trained}
    outcomes = {
        seed: Outcome(one.ending, values.get(seed))
        for seed, one in counted.items()
        if not one.trained or values[seed] is not None
    }
    trained = [value for value in values.values() if value is not None]
    if values and not trained:  # it has no such metric
        return _Measured()
    if metric == record.spec.objective.metric:
        return _Measured(CONFIRMED, outcomes, known.estimate, known.failures)
    level = find_last_level(looks, ALPHA, [outcome.trained for outcome in counted.values()]) if looks else 0.0
    return _Measured(CONFIRMED, outcomes, bound_mean(trained, level) if trained else None, known.failures)


def _subtract(ours: _Measured, baseline: _Measured, known: Compared | None) -> Estimate | None:
    """Return ours less the baseline's, paired by seed, with an interval at the level of the arm's verdict; None where
    they are not of one kind."""
    if ours.kind != baseline.kind or not ours.kind:
        return None
    looks, versus = (known.looks, known.versus) if known else (None, None)
    return pair_outcomes(ours.outcomes, baseline.outcomes, looks).estimate(versus.level if versus else 0.0)


def _read_metric(trial: TrialRecord, metric: str, record: SweepRecord) -> float | None:
    """Return the finite `metric` of a trial that completed."""
    value = trial.value if metric == record.spec.objective.metric else read_metric(trial.metrics, metric)
    return value if trial.status == "completed" and value is not None and math.isfinite(value) else None
