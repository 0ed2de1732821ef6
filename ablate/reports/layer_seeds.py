"""The layers of each arm at the end of training, over its fresh seeds, in sweeps with `trainer.diagnose`.

Numbers are means over thirds of the depth. For each number, the last third of an arm is compared with its own middle,
and with the last third of the baseline, in pairs of seeds: all comparisons share an error of 5 %, apart from that of
the verdict. Seeds that failed are left out, so that all of this is about models that trained.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ablate.config.formatting import count_noun, format_number
from ablate.diagnostics.measures import measurements
from ablate.diagnostics.measures.base import THIRDS, average_thirds
from ablate.plots.figure import Axis, Entry, Figure, Panel, Part
from ablate.plots.marks import Band, Line, Mark
from ablate.reports.section import Column, Section, Table, words
from ablate.sweeps.records import SweepRecord
from ablate.verdict.failures import ALPHA
from ablate.verdict.intervals import Estimate, bound_mean
from ablate.verdict.looks import find_lowest_level
from ablate.verdict.sequential import LEAST
from ablate.verdict.statements import format_estimate

LAYERS = "layers-seeds"
"""The name of the figure."""
Rows = Mapping[int, Sequence[float]]
"""Seed -> a number of each layer."""


@dataclass(frozen=True)
class LayerNumber:
    """One number of the layers of one arm."""

    seeds: dict[int, list[float]]
    """Seed that trained -> its value for each layer."""
    thirds: list[Estimate]
    """The means over the first third of the depth, the middle and the last, each with its 95 % interval over seeds."""


@dataclass(frozen=True)
class LayerDifference:
    """The difference of two means over a third of the depth, in pairs of seeds."""

    arm: str
    column: str
    against: str
    """The subtracted mean: "its middle", or an arm, whose last third it is."""
    is_ratio: bool
    """Whether it is that of the natural logarithms."""
    estimate: Estimate | None
    """With an interval at the level of all differences; None for fewer than three pairs, or values without a
    logarithm."""

    @property
    def word(self) -> str:
        """higher, lower, or not shown."""
        return {1: "higher", -1: "lower", 0: "not shown"}[self.estimate.sign if self.estimate else 0]


@dataclass(frozen=True)
class LayersOverSeeds:
    """The layers of all arms."""

    numbers: dict[str, dict[str, LayerNumber]]
    """Column -> arm -> its numbers."""
    differences: list[LayerDifference]
    """They share an error of 5 %."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, each difference with its word."""
        return {**asdict(self), "differences": [{**asdict(one), "word": one.word} for one in self.differences]}


def describe_column(column: str) -> str:
    """Return the description of a number, with its unit."""
    return next((m.columns[column] for m in measurements.values() if column in m.columns), column.replace("_", " "))


def compare_layers(record: SweepRecord) -> LayersOverSeeds | None:
    """Return the layers of the fresh seeds; None if nothing was measured of them."""
    rows: dict[str, dict[str, dict[int, list[float]]]] = {}
    for arm in record.arms:
        for run in record.fresh(arm):
            outcome = record.runs.find_outcome(run)
            if outcome is None or not outcome.trained:
                continue
            for column, values in run.layers.items():
                if all(value is not None for value in values):
                    by_arm = rows.setdefault(column, {})
                    by_arm.setdefault(arm, {})[run.seed] = [v for v in values if v is not None]
    if not rows:
        return None
    ratios = {column for kind in measurements.values() if kind.is_positive for column in kind.columns}
    pairs = [
        (column, arm, against)
        for column, by_arm in rows.items()
        for arm in by_arm
        for against in (None, record.spec.baselines[arm])
        if against is None or (against != arm and against in by_arm)
    ]
    level = find_lowest_level(record.looks.values(), ALPHA / max(1, len(pairs)))
    numbers = {
        column: {
            arm: LayerNumber(
                dict(sorted(seeds.items())),
                [
                    bound_mean(third, ALPHA, scale=1.0)
                    for third in zip(*map(average_thirds, seeds.values()), strict=True)
                ],
            )
            for arm, seeds in by_arm.items()
        }
        for column, by_arm in rows.items()
    }
    differences = [
        LayerDifference(
            arm,
            column,
            against or "its middle",
            column in ratios,
            _bound_difference(_list_pairs(rows[column], arm, against), column in ratios, level),
        )
        for column, arm, against in pairs
    ]
    return LayersOverSeeds(numbers, differences)


def _list_pairs(rows: Mapping[str, Rows], arm: str, against: str | None) -> list[tuple[float, float]]:
    """Return, for each seed, the mean over the last third and the mean that is subtracted from it."""
    own = {seed: average_thirds(values) for seed, values in rows[arm].items()}
    if against is None:
        return [(last, middle) for _, middle, last in own.values()]
    others = {seed: average_thirds(values) for seed, values in rows[against].items()}
    return [(own[seed][2], others[seed][2]) for seed in own if seed in others]


def _bound_difference(pairs: Sequence[tuple[float, float]], is_ratio: bool, level: float) -> Estimate | None:
    if len(pairs) < LEAST or (is_ratio and min(map(min, pairs)) <= 0):
        return None
    change = math.log if is_ratio else float
    return bound_mean([change(one) - change(other) for one, other in pairs], level, scale=1.0)


# ---------------------------------------------------------------------------------------------------- section


def tabulate_layers(known: LayersOverSeeds | None) -> list[Section]:
    """Return the layers of the fresh seeds, a section for each number; nothing if none was measured."""
    if known is None:
        return []
    sections = []
    for column, arms in known.numbers.items():
        columns = [
            words("arm", arms),
            Column("n seeds", [len(one.seeds) for one in arms.values()]),
            *(Column(third, [one.thirds[k] for one in arms.values()]) for k, third in enumerate(THIRDS)),
        ]
        sections.append(Section(f"Layers of fresh seeds: {describe_column(column)}", Table(columns)))
    shown = known.differences
    columns = [
        words("number", [one.column for one in shown]),
        words("last third of", [one.arm for one in shown]),
        words("against", [one.against for one in shown]),
        Column("difference or factor", [one if one.estimate else None for one in shown], _format),
        words("", [one.word for one in shown]),
    ]
    sentences = [
        f"{count_noun(len(shown), 'difference')}, in pairs of seeds that trained: they share an error of 5 %, apart "
        "from that of the verdict. Magnitudes, such as a variance, have the factor with its interval in its place.",
        "Means over thirds of the depth with their 95 % intervals over seeds. Neighbouring thirds share a layer where "
        "the number of layers is no multiple of three. Seeds that failed are left out.",
    ]
    return [*sections, Section("Differences between layers", Table(columns), sentences)]


def draw_layers_over_seeds(record: SweepRecord, known: LayersOverSeeds) -> Figure:
    """Return a panel for each number, with a line for each arm over the layers."""
    looks, panels = record.spec.looks, []
    for column, arms in known.numbers.items():
        title, marks = describe_column(column), list[Mark]()
        for arm, one in arms.items():
            colour, layers = looks[arm][0], list(zip(*one.seeds.values(), strict=True))
            places = range(1, len(layers) + 1)
            marks.append(Band(places, [*map(min, layers)], [*map(max, layers)], colour))
            marks.append(Line(places, [math.fsum(values) / len(values) for values in layers], colour, 1.6))
        numbers = [value for one in arms.values() for values in one.seeds.values() for value in values]
        upwards = Axis(log=all(value > 0 for value in numbers))
        if not upwards.log and (near := float(f"{statistics.median(map(abs, numbers)):.1g}")):  # some are negative
            upwards = Axis(near=near, ticks=_find_ticks(near, max(map(abs, numbers))))
            title += f"; linear within ±{near:g}"
        panels.append(Panel(marks, Axis("layer", numbers="layers"), upwards, title))
    return Figure(
        LAYERS,
        f"{record.title}: the layers of fresh seeds after training",
        [Part(panels)],
        caption="Numbers of each layer at the end of training, of the fresh seeds that trained: the mean of an arm "
        "and, shaded, the range from the lowest seed to the highest.",
        entries=[
            Entry(arm, looks[arm][0]) for arm in dict.fromkeys(arm for own in known.numbers.values() for arm in own)
        ],
    )


def _find_ticks(near: float, largest: float) -> dict[float, str]:
    """Return the ticks of an axis that is logarithmic on both sides of zero and linear within `near`: at zero, at
    `near` and at the powers of ten up to `largest` whose labels do not touch that of `near`."""
    first, last = (math.floor(math.log10(value)) for value in (near, largest))
    ends = [near, *(power for k in range(first, last + 1) if (power := 10.0**k) > 2 * near)]
    return {tick: f"{tick:g}" for tick in (*(-end for end in reversed(ends)), 0.0, *ends)}


def _format(one: LayerDifference) -> str:
    assert one.estimate is not None
    if not one.is_ratio:
        return format_estimate(one.estimate, sign=True)
    mean, ends = math.exp(one.estimate.mean), one.estimate.interval
    span = f" ({format_number(math.exp(ends[0]), 3)} to {format_number(math.exp(ends[1]), 3)})" if ends else ""
    return f"times {format_number(mean, 3)}{span}"
