"""Importance of the learning rate to an arm, with its variation over seeds: of a sweep that tests each point of a grid,
the sensitivity (`ablate.reports.sensitivity`) of the curve that each seed has.

Rows are an arm at fixed values of everything else that is searched, such as the warm-up. Differences are paired over
seeds: an arm less the baseline at the same other values, and an arm at other values less itself at the values that the
file sets outside of its search. They share an error of 5 % among themselves, apart from that of the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ablate.config.formatting import count_noun, format_setting, format_settings, is_number, join_words, shorten_paths
from ablate.reports.labels import LEARNING_RATE
from ablate.reports.section import Column, Section, Table, words
from ablate.reports.sensitivity import MEANING, METRIC, MINIMUM_RATES, TITLE, cap_loss, compute_mean_excess
from ablate.sweeps.records import SweepRecord
from ablate.verdict.failures import ALPHA
from ablate.verdict.intervals import Estimate, bound_mean
from ablate.verdict.looks import find_lowest_level
from ablate.verdict.outcomes import Outcome
from ablate.verdict.sequential import LEAST
from ablate.verdict.statements import format_estimate

Row = tuple[str, tuple[tuple[str, Any], ...]]
"""An arm, and the values of what is searched beside the learning rate."""


@dataclass(frozen=True)
class RowSensitivity:
    """The learning-rate sensitivity of an arm at fixed values of what is searched beside the learning rate."""

    seeds: Mapping[int, float]
    """Seed that trained at some rate -> its sensitivity, in nats."""
    untrained: int
    """Seeds that trained at no rate: their losses are alike whatever the rate, and say nothing of tuning."""
    failed: int
    """Runs that diverged or got stuck, of all `runs`."""
    runs: int
    estimate: Estimate | None
    """Mean over the seeds with its 95 % interval; None where some seed trained at no rate."""


@dataclass(frozen=True)
class SensitivityDifference:
    """The difference of two rows, in pairs of seeds."""

    row: str
    other: str
    """The one that is subtracted."""
    estimate: Estimate | None
    """With an interval at the level of all differences; None for fewer than three pairs, and where a row has none."""

    @property
    def word(self) -> str:
        """more sensitive, less sensitive, or not shown."""
        return {1: "more sensitive", -1: "less sensitive", 0: "not shown"}[self.estimate.sign if self.estimate else 0]


@dataclass(frozen=True)
class SeedSensitivities:
    """Of all arms of a sweep."""

    rows: dict[str, RowSensitivity]
    differences: list[SensitivityDifference]
    """They share an error of 5 %."""
    low: float
    high: float
    """The searched rates."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, each difference with its word."""
        return {**asdict(self), "differences": [{**asdict(pair), "word": pair.word} for pair in self.differences]}


def compare_sensitivities(record: SweepRecord) -> SeedSensitivities | None:
    """Return the sensitivities over the seeds that have ended at every rate. None if the sweep does not test the points
    of a grid, the objective is not the loss, that of guessing is unknown, or the arms do not have the same three or
    more learning rates."""
    spec, cap = record.spec, record.initial_loss
    table: dict[Row, dict[float, str]] = {}
    for name, cell in spec.cells.items():
        rate = cell.point.get(LEARNING_RATE)
        if not is_number(rate) or rate <= 0:
            return None
        others = tuple((path, value) for path, value in cell.point.items() if path != LEARNING_RATE)
        table.setdefault((cell.arm, others), {})[float(rate)] = name
    rates = [sorted(cells) for cells in table.values()]
    if spec.objective.metric != METRIC or cap is None or not rates or len(rates[0]) < MINIMUM_RATES:
        return None
    if any(own != rates[0] for own in rates):
        return None
    short = shorten_paths(path for _, others in table for path, _ in others)
    names = {row: f"{row[0]} {format_settings(dict(row[1]), short)}".rstrip() for row in table}
    rows = {names[row]: _read_row(record, cells, cap) for row, cells in table.items()}
    pairs = [(names[row], names[other]) for row, other in _list_pairs(record, table)]
    level = find_lowest_level(record.looks.values(), ALPHA / max(1, len(pairs)))
    differences = [
        SensitivityDifference(row, other, _bound_difference(rows[row], rows[other], level)) for row, other in pairs
    ]
    return SeedSensitivities(rows, differences, rates[0][0], rates[0][-1])


def _read_row(record: SweepRecord, cells: Mapping[float, str], cap: float) -> RowSensitivity:
    """Return the sensitivity of one row; `cells`: learning rate -> name of its cell."""
    outcomes: dict[float, dict[int, Outcome]] = {}
    for rate, name in cells.items():
        ended = record.fresh(name).outcomes().items()
        outcomes[rate] = {int(seed): outcome for seed, outcome in ended if outcome}
    seeds = sorted(set.intersection(*({*by_seed} for by_seed in outcomes.values())))
    low, high = min(outcomes), max(outcomes)
    values = {
        seed: compute_mean_excess(
            [(rate, cap_loss(by_seed[seed].value, cap)) for rate, by_seed in outcomes.items()], low, high
        )
        for seed in seeds
        if any(by_seed[seed].trained for by_seed in outcomes.values())
    }
    known = bool(values) and len(values) == len(seeds)
    return RowSensitivity(
        values,
        len(seeds) - len(values),
        sum(not by_seed[seed].trained for by_seed in outcomes.values() for seed in seeds),
        len(seeds) * len(outcomes),
        bound_mean([*values.values()], ALPHA, scale=1.0) if known else None,
    )


def _list_pairs(record: SweepRecord, rows: Mapping[Row, Any]) -> Iterator[tuple[Row, Row]]:
    """Yield the rows that are compared, each with the one that is subtracted from it."""
    baseline = record.spec.compared_with
    for arm, others in rows:
        if arm != baseline and (baseline, others) in rows:
            yield (arm, others), (baseline, others)
    plain = record.spec.without_grid()
    settings = {arm: plain.at(arm, {}).flat() for arm, others in rows if others}
    for arm, others in rows:
        usual = tuple((path, settings[arm].get(path)) for path, _ in others)
        if others != usual and (arm, usual) in rows:
            yield (arm, others), (arm, usual)


def _bound_difference(one: RowSensitivity, other: RowSensitivity, level: float) -> Estimate | None:
    if one.estimate is None or other.estimate is None:
        return None
    pairs = [value - other.seeds[seed] for seed, value in one.seeds.items() if seed in other.seeds]
    return bound_mean(pairs, level, scale=1.0) if len(pairs) >= LEAST else None


# ---------------------------------------------------------------------------------------------------- section


def tabulate_seed_sensitivities(known: SeedSensitivities | None) -> list[Section]:
    """Return the learning-rate sensitivity over the seeds of each arm of a sweep that tests the points of a grid;
    nothing of other sweeps."""
    if known is None or not any(row.seeds for row in known.rows.values()):
        return []
    rows = known.rows
    columns = [
        words("arm", rows),
        Column("sensitivity", [row.estimate for row in rows.values()]),
        Column("n seeds", [len(row.seeds) for row in rows.values()]),
        Column("runs that failed", [f"{row.failed} of {row.runs}" for row in rows.values()]),
    ]
    span = f"Rates from {format_setting(known.low)} to {format_setting(known.high)}, mean over seeds ± 95 %."
    sentences = [f"{MEANING} {span}", "A diverged run counts with the initial loss, a stuck one with its own."]
    if some := [f"{name} ({count_noun(row.untrained, 'seed')})" for name, row in rows.items() if row.untrained]:
        why = "where seeds trained at no rate, as their losses say nothing of tuning"
        sentences.append(f"None {why}: {join_words(some)}.")
    sections = [Section(f"{TITLE}, over seeds", Table(columns), sentences)]
    if known.differences:
        pairs = known.differences
        columns = [
            words("arm", [pair.row for pair in pairs]),
            words("less", [pair.other for pair in pairs]),
            Column(
                "difference", [pair.estimate for pair in pairs], lambda estimate: format_estimate(estimate, sign=True)
            ),
            words("", [pair.word for pair in pairs]),
        ]
        shared = f"{count_noun(len(pairs), 'difference')}, in pairs of seeds: they share an error of 5 %, apart from "
        sections.append(Section("Differences of sensitivity", Table(columns), [f"{shared}that of the verdict."]))
    return sections
