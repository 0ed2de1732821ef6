"""Importance of the learning rate to an arm: the sensitivity of Wortsman et al. 2023 (arXiv 2309.14322), the mean over
log learning rates in the searched range of min(loss, initial loss) - lowest loss. For a search it is computed from the
trials; a stuck trial has a loss, which the definition takes as it is. For a sweep that tests each point of a grid it is
computed from the curve of each seed, and so with its variation over seeds.

Rows over seeds are an arm at fixed values of everything else that is searched, such as the warm-up. Differences are
paired over seeds: an arm less the baseline at the same other values, and an arm at other values less itself at the
values that the file sets outside of its search. They share an error of 5 % among themselves, apart from that of the
verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ablate.config.formatting import count_noun, format_setting, format_settings, is_number, join_words, shorten_paths
from ablate.reports.labels import LEARNING_RATE
from ablate.reports.section import Column, Section, Table, words
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FINISHED, Run
from ablate.verdict.failures import ALPHA
from ablate.verdict.intervals import Estimate, bound_mean
from ablate.verdict.looks import find_lowest_level
from ablate.verdict.outcomes import Outcome
from ablate.verdict.sequential import LEAST
from ablate.verdict.statements import format_estimate

XY = tuple[float, float]
MINIMUM_RATES = 3  # finished trials below which none is given
METRIC = "val/loss"  # the objective that it is defined for

TITLE = "Learning-rate sensitivity (Wortsman et al. 2023)"
MEANING = (
    "The mean, over log learning rates in the searched range, of the loss (at most the initial loss) minus the "
    "lowest loss, in the unit of the loss: a lower value means that less tuning is needed."
)


@dataclass(frozen=True)
class Sensitivity:
    """The learning-rate sensitivity of an arm."""

    value: float | None
    """In nats; a lower value means that a badly chosen learning rate costs less. None if no trial trained: the losses
    of failures are alike whatever the learning rate."""
    n: int
    """Number of finished trials behind it."""
    low: float
    high: float
    """The searched range."""
    diverged: int
    """Number of trials that count with the initial loss."""
    stuck: int
    """Number of trials that ran to their end without learning; they count with their own loss."""
    pruned: int
    """Number of trials that count with the last loss before they were pruned."""
    envelope: bool
    """Whether it is computed from the lower convex hull of the trials, since more than the learning rate was
    searched."""


def compute_sensitivity(record: SweepRecord, arm: str) -> Sensitivity | None:
    """Return the sensitivity of `arm`, without a value if none of its trials trained; None if the objective is not the
    loss, the loss of guessing is unknown, or fewer than 3 trials with different learning rates are finished."""
    rates, cap = record.spec.corners(arm).get(LEARNING_RATE, []), record.initial_loss
    numbers = [float(rate) for rate in rates if is_number(rate) and rate > 0]
    if record.spec.objective.metric != METRIC or cap is None or len(numbers) < len(rates) or len(set(numbers)) < 2:
        return None
    low, high = min(numbers), max(numbers)
    trials = [t for t in record.search(arm) if t.status in FINISHED and is_number(t.params.get(LEARNING_RATE))]
    points = [
        (float(t.params[LEARNING_RATE]), cap_loss(_read_loss(t), cap)) for t in trials if t.params[LEARNING_RATE] > 0
    ]
    if len(points) < MINIMUM_RATES or len({x for x, _ in points}) < 2:
        return None
    envelope = len(record.spec.space(arm)) > 1
    outcomes = [outcome for t in trials if (outcome := record.runs.find_outcome(t))]
    return Sensitivity(
        compute_mean_excess(points, low, high, envelope) if any(one.trained for one in outcomes) else None,
        len(points),
        low,
        high,
        sum(one.ending == "diverged" for one in outcomes),
        sum(one.ending == "stuck" for one in outcomes),
        sum(t.status == "pruned" for t in trials),
        envelope,
    )


def compute_mean_excess(points: Sequence[XY], low: float, high: float, envelope: bool = False) -> float:
    """The mean of loss - lowest loss over log(x) from `low` to `high`.

    `points` are (x, loss), joined by straight lines in log(x) and constant beyond the outermost; the lowest of several
    at one x counts. `envelope`: their lower convex hull instead.
    """
    lowest: dict[float, float] = {}
    for x, y in ((math.log(x), y) for x, y in points):
        lowest[x] = min(y, lowest.get(x, y))
    line = compute_hull(list(lowest.items()), 1, log=False) if envelope else sorted(lowest.items())
    xs, ys = zip(*line, strict=True)
    a, b = math.log(low), math.log(high)
    knots = np.array([a, *(x for x in xs if a < x < b), b])
    heights = np.interp(knots, xs, ys)
    area = float(np.sum(np.diff(knots) * (heights[1:] + heights[:-1]) / 2))
    return area / (b - a) - float(heights.min())


def cap_loss(loss: float | None, cap: float) -> float:
    """Return the loss that counts: at most that of guessing, `cap`, which a diverged trial (None) counts with."""
    return cap if loss is None else min(loss, cap)


def _read_loss(trial: Run) -> float | None:
    if trial.status == "diverged":
        return None
    return find_last_value(trial) if trial.status == "pruned" else trial.value


def compute_hull(points: list[XY], sign: int, log: bool) -> list[XY]:
    """Return the convex hull of `points` on their good side, in the order of x; `log` takes x in the logarithm."""
    hull: list[XY] = []
    for x, y in sorted((math.log(x) if log else x, sign * y) for x, y in points):
        if hull and hull[-1][0] == x:
            continue
        while len(hull) > 1 and _cross_product(hull[-2], hull[-1], (x, y)) <= 0:
            hull.pop()
        hull.append((x, y))
    return [(math.exp(x) if log else x, sign * y) for x, y in hull]


def _cross_product(a: XY, b: XY, c: XY) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def find_last_value(trial: Run) -> float | None:
    """Return the last finite objective that `trial` reported."""
    return next((value for _, value in sorted(trial.curve.items(), reverse=True) if math.isfinite(value)), None)


# ---------------------------------------------------------------------------------------------------- section


def tabulate_sensitivities(known: Mapping[str, Sensitivity | None]) -> list[Section]:
    """Return the learning-rate sensitivity of each arm; nothing if it is unknown for all."""
    if not any(known.values()):
        return []
    rows = known.values()
    counts = {"n trials": "n", "diverged": "diverged", "stuck": "stuck", "pruned": "pruned"}
    columns = [
        words("arm", known),
        Column("sensitivity", [s and s.value for s in rows]),
        *(Column(title, [s and getattr(s, name) for s in rows]) for title, name in counts.items()),
        Column("range", [s and f"{format_setting(s.low)} to {format_setting(s.high)}" for s in rows]),
    ]
    return [Section(TITLE, Table(columns), list(_describe_sensitivities(known)))]


def _describe_sensitivities(sensitivities: Mapping[str, Sensitivity | None]) -> Iterable[str]:
    known = {arm: s for arm, s in sensitivities.items() if s}
    if any(s.value is not None for s in known.values()):
        yield MEANING
    if failed := [arm for arm, s in known.items() if s.value is None]:
        yield f"None for {join_words(failed)}: none of the trials trained, and then the losses say nothing of tuning."
    if any(s.diverged or s.pruned for s in known.values()):
        yield "A diverged trial counts with the initial loss, a pruned trial with its last reported loss."
    if any(s.stuck for s in known.values()):
        yield "A stuck trial, which ended without having learned, counts with its own loss."
    if hulls := [arm for arm, s in known.items() if s.envelope]:
        yield (
            f"For {join_words(hulls)}, which search more parameters, it is computed from the lower convex hull of the "
            "trials."
        )
    if len({(s.low, s.high) for s in known.values()}) > 1:
        yield "The ranges differ, so that these values cannot be compared."
    if none := [arm for arm, s in sensitivities.items() if not s]:
        yield f"None for {join_words(none)}: it needs {MINIMUM_RATES} finished trials at positive learning rates."


Row = tuple[str, tuple[tuple[str, Any], ...]]
"""An arm, and the values of the other searched settings beside the learning rate."""


@dataclass(frozen=True)
class RowSensitivity:
    """The learning-rate sensitivity of an arm at fixed values of the other searched settings."""

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
    """The row that is subtracted."""
    estimate: Estimate | None
    """With an interval at the level of all differences; None for fewer than three pairs, and where a row has none."""

    @property
    def word(self) -> str:
        """more sensitive, less sensitive, or not shown."""
        return {1: "more sensitive", -1: "less sensitive", 0: "not shown"}[self.estimate.sign if self.estimate else 0]


@dataclass(frozen=True)
class SeedSensitivities:
    """The sensitivities of all arms of a sweep."""

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
    nothing for other sweeps."""
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
