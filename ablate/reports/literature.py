"""Published results next to this sweep's: shown together, never mixed into this sweep's comparisons. A score on a
downstream task that the trials do not report is read from what `ablate evaluate` stored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ablate.config.errors import ConfigError
from ablate.config.formatting import UNBOUNDED, count_noun, format_uncertain, join_words
from ablate.experiment.metrics import describe_metric, is_score, list_parts, read_metric, shorten_metric
from ablate.reports.downstream import StoredScores
from ablate.reports.section import Column, Section, Table, words
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import Run
from ablate.sweeps.spec.scale import describe_scale
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.comparison import Compared, pair_outcomes
from ablate.verdict.failures import ALPHA, FailureShare
from ablate.verdict.intervals import Estimate, bound_mean
from ablate.verdict.looks import find_last_level
from ablate.verdict.outcomes import Outcome
from ablate.verdict.statements import format_estimate

CONFIRMED, SEARCHED, CHOSEN = "fresh seeds", "best of the search", "chosen trial"


@dataclass(frozen=True)
class PublishedRow:
    """A published result of an arm and this sweep's."""

    arm: str
    ours: Estimate | None
    """Ours, over the fresh seeds on which it trained and that have the metric. Before the first fresh seed, and for a
    score that no fresh seed has, from the trial that represents the arm. None without the metric, and if no seed
    trained."""
    kind: str
    """CONFIRMED, SEARCHED or CHOSEN, which of these; '' without one."""
    unscored: int
    """Fresh seeds that trained, and do not have the metric though others of the arm do."""
    failures: FailureShare | None
    """Failures of the fresh seeds."""
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
    stored: bool = False
    """Whether ours are, or are a mean with, scores that were stored after training."""
    unlike: list[str] = field(default_factory=list)
    """Scores that were stored, but of different numbers of questions or of solved examples, and are not used."""


def compare_published(record: SweepRecord, stored: StoredScores | None = None) -> list[PublishedTable]:
    """Return the results that the sweep file quotes, next to this sweep's.

    Args:
        record: the sweep.
        stored: scores on downstream tasks that were measured after training, for metrics that the trials do not have.
    """
    tables, baseline, compared, stored = [], record.spec.compared_with, compare_record(record), stored or StoredScores()
    for entry in record.spec.published:
        reader = _Reader(record, entry.metric, stored)
        ours = {arm: _measure_arm(reader, arm, compared.get(arm)) for arm in {baseline, *entry.values}}
        rows = []
        for arm, value in entry.values.items():
            theirs = value - entry.values[baseline] if arm != baseline and baseline in entry.values else None
            own = ours[arm]
            difference = _subtract(own, ours[baseline], compared.get(arm)) if arm != baseline else None
            rows.append(
                PublishedRow(arm, own.estimate, own.kind, own.unscored, own.failures, value, difference, theirs)
            )
        own_tokenizer = _name_tokenizer(record)
        other = entry.tokenizer is not None and own_tokenizer not in (None, entry.tokenizer)
        tokenizers = (str(entry.tokenizer), str(own_tokenizer)) if other else None
        unlike = [part for part in list_parts(entry.metric) if part in stored.unlike]
        tables.append(PublishedTable(entry.source, entry.metric, rows, tokenizers, reader.used_stored, unlike))
    return tables


def _name_tokenizer(record: SweepRecord) -> str | None:
    """Return the tokenizer of the sweep, or the name of data that has none of its own; None where it cannot be told."""
    try:
        data = record.spec.own_base(record.spec.compared_with).data
    except ConfigError:  # a plugin is missing, or the runs are of a kind without data
        return None
    return str(getattr(data, "tokenizer", data.kind))


@dataclass(frozen=True)
class _Measured:
    """The result of an arm."""

    kind: str = ""
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """Seed -> outcome, its value the metric's; that of a trial of the search has the seed 0."""
    estimate: Estimate | None = None
    failures: FailureShare | None = None
    unscored: int = 0


@dataclass
class _Reader:
    """Reads a metric of the trials of a sweep."""

    record: SweepRecord
    metric: str
    stored: StoredScores
    used_stored: bool = False
    """Whether a value came from the stored scores."""

    def read(self, trial: Run | None, scores: Mapping[str, float]) -> float | None:
        """Return the finite metric of a trial that completed: its own, or one with `scores` that were stored of it."""
        if trial is None or trial.status != "completed":
            return None
        objective = self.metric == self.record.spec.objective.metric
        value = trial.value if objective else read_metric(trial.metrics, self.metric)
        if value is None:
            value = read_metric({**scores, **trial.metrics}, self.metric)
            self.used_stored |= value is not None
        return value if value is not None and math.isfinite(value) else None

    def read_search(self, arm: str) -> _Measured:
        """Return the result of the trial that represents `arm`: the best of its search or, if that has no such metric
        and another was chosen and scored, the latter."""
        best = self.record.best(arm) if arm in self.record.arms else None
        for kind, trial, scores in (
            (SEARCHED, best, {}),
            (CHOSEN, self.record.settled(arm), self.stored.read(arm, None)),
        ):
            if (value := self.read(trial, scores)) is not None:
                return _Measured(kind, {0: Outcome("trained", value)}, bound_mean([value], 0.0))
        return _Measured()


def _measure_arm(reader: _Reader, arm: str, known: Compared | None) -> _Measured:
    """Return the result of `arm`: on fresh seeds as soon as one has ended, however it did, else in the search."""
    if known is None or not known.outcomes:
        return reader.read_search(arm)
    looks, record = known.looks, reader.record
    trials = {t.seed: t for t in record.fresh(arm) if t.status == "completed"}
    counted = dict(list(known.outcomes.items())[: looks.sizes[-1] if looks else None])
    values = {
        seed: reader.read(trials[seed], reader.stored.read(arm, seed)) for seed, one in counted.items() if one.trained
    }
    measured = {seed: value for seed, value in values.items() if value is not None}
    if values and not measured:  # no fresh seed has such a metric; scores may be of the trial that was chosen
        scored = any(map(is_score, list_parts(reader.metric)))
        return replace(reader.read_search(arm), failures=known.failures) if scored else _Measured()
    outcomes = {
        seed: Outcome(one.ending, measured.get(seed))
        for seed, one in counted.items()
        if not one.trained or seed in measured
    }
    if reader.metric == record.spec.objective.metric:
        return _Measured(CONFIRMED, outcomes, known.estimate, known.failures)
    level = find_last_level(looks, ALPHA, [seed in measured for seed in counted]) if looks else 0.0
    estimate = bound_mean(list(measured.values()), level) if measured else None
    return _Measured(CONFIRMED, outcomes, estimate, known.failures, len(values) - len(measured))


def _subtract(ours: _Measured, baseline: _Measured, known: Compared | None) -> Estimate | None:
    """Return ours less the baseline's, paired by seed, with an interval at the level of the arm's verdict; None where
    they are not of one kind."""
    if ours.kind != baseline.kind or not ours.kind:
        return None
    looks, versus = (known.looks, known.versus) if known else (None, None)
    return pair_outcomes(ours.outcomes, baseline.outcomes, looks).estimate(versus.level if versus else 0.0)


# ---------------------------------------------------------------------------------------------------- section


def tabulate_published(tables: Sequence[PublishedTable], spec: Sweep) -> list[Section]:
    """Return the numbers of papers beside ours, a section for each source."""
    baseline, sections = spec.compared_with, list[Section]()
    for source in tables:
        rows, known = source.rows, describe_metric(source.metric)
        bounds = known.bounds if known else UNBOUNDED
        columns = [
            words("arm", [r.arm for r in rows]),
            words("which", [r.kind or None for r in rows]),
            Column("n", [r.ours and r.ours.n for r in rows]),
            *([Column("failed", [r.failures for r in rows], count_failed)] if any(r.failures for r in rows) else []),
            Column("ours", [r.ours and format_estimate(r.ours, bounds=bounds) for r in rows]),
            Column(f"difference to {baseline}", [r.difference for r in rows], lambda d: format_estimate(d, sign=True)),
            Column("published", [r.published for r in rows]),
            Column(
                f"difference to {baseline}",
                [r.published_difference for r in rows],
                lambda difference: format_uncertain(difference, None, sign=True),
            ),
        ]
        metric = shorten_metric(source.metric)
        sections.append(Section(f"Published: {source.source} ({metric})", Table(columns)))
        if source.tokenizers:
            theirs, ours = source.tokenizers
            sections[-1].sentences.append(
                f"The published values use the tokenizer {theirs}, ours use {ours}: unless these are the same, "
                f"{metric} cannot be compared."
            )
    if any(row.failures for source in tables for row in source.rows):
        sections[-1].sentences.append(
            "Ours: mean ± interval over the n seeds on which it trained, as in the table of fresh seeds."
        )
    if sections:
        sections[-1].sentences.extend(_explain_scores(tables, spec.checkpoints == "all"))
        sections[-1].sentences.append(
            "Their data, sizes or budgets may differ: they are not used in this report's comparisons."
        )
        sections[-1].sentences.extend(filter(None, [describe_scale(spec)]))
    return sections


def count_failed(share: FailureShare) -> str:
    """Return '2 of 5'."""
    return f"{share.failed} of {share.n}"


def _explain_scores(tables: Sequence[PublishedTable], keeps_all: bool) -> Iterator[str]:
    """Yield which runs the stored scores are of, and which scores are not used. `keeps_all`: whether checkpoints of all
    fresh seeds are kept."""
    if any(table.stored for table in tables):
        yield (
            "Scores that are not measured in training are those that ablate evaluate stored: of the n fresh seeds that "
            "were scored or, without one, of the chosen trial."
        )
    rows = [row for table in tables for row in table.rows]
    if unscored := dict.fromkeys(f"{row.arm} {count_noun(row.unscored, 'seed')}" for row in rows if row.unscored):
        yield f"Trained but not scored: {join_words(unscored)}."
        if not keeps_all:
            yield (
                "Without checkpoints=all only the best fresh seed of an arm keeps its checkpoint, and its score is "
                "optimistic."
            )
    if unlike := dict.fromkeys(metric for table in tables for metric in table.unlike):
        yield (
            f"Not used: {join_words(unlike)}, as the runs were scored on different numbers of questions or with "
            "different numbers of solved examples. Evaluate them with the same options."
        )
