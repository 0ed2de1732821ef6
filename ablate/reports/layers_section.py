"""The section of the report on the layers of fresh seeds."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

from ablate.config.formatting import count_noun, format_number
from ablate.diagnostics.thirds import THIRDS
from ablate.plots import style
from ablate.plots.panels import create_panels, fold_label, tick_layers
from ablate.reports.columns import word_column
from ablate.reports.labels import choose_looks
from ablate.reports.layer_seeds import LayerDifference, LayersOverSeeds, describe_column
from ablate.reports.report_data import ReportData
from ablate.reports.table import NOTHING, Column, Section, Table
from ablate.sweeps.records import SweepRecord
from ablate.verdict.statements import format_estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTION = (
    "Numbers of each layer at the end of training, of the fresh seeds that trained: the mean of an arm and, shaded, "
    "the range from the lowest seed to the highest."
)


def tabulate_layers(report: ReportData) -> list[Section]:
    """Return what the layers of the fresh seeds do, a section for each number; nothing where none was measured."""
    known = report.layers
    if known is None:
        return []
    sections = []
    for column, arms in known.numbers.items():
        columns = [
            word_column("arm", arms),
            Column("n seeds", [str(len(one.seeds)) for one in arms.values()]),
            *(
                Column(third, [format_estimate(one.thirds[k]) for one in arms.values()])
                for k, third in enumerate(THIRDS)
            ),
        ]
        sections.append(Section(f"Layers of fresh seeds: {describe_column(column)}", Table(columns)))
    shown = known.differences
    columns = [
        word_column("number", [one.column for one in shown]),
        word_column("last third of", [one.arm for one in shown]),
        word_column("against", [one.against for one in shown]),
        Column("difference or factor", [_format(one) for one in shown]),
        word_column("", [one.word for one in shown]),
    ]
    sentences = [
        f"{count_noun(len(shown), 'difference')}, in pairs of seeds that trained: they share an error of 5 %, apart "
        "from that of the verdict. Magnitudes, such as a variance, have the factor with its interval in its place.",
        "Means over thirds of the depth with their 95 % intervals over seeds. Neighbouring thirds share a layer where "
        "the number of layers is no multiple of three. Seeds that failed are left out.",
    ]
    return [*sections, Section("Differences between layers", Table(columns), sentences)]


def layers_to_plain(report: ReportData) -> dict[str, Any]:
    """Return the part's values in report.json."""
    return {} if report.layers is None else {"layers": report.layers.to_dict()}


def draw_layers_over_seeds(record: SweepRecord, known: LayersOverSeeds) -> Figure:
    """Return a panel for each number, with a line for each arm over the layers."""
    looks = choose_looks(record)
    figure, panels = create_panels(f"{record.title}: the layers of fresh seeds after training", list(known.numbers))
    for panel, (column, arms) in zip(panels, known.numbers.items(), strict=True):
        title = describe_column(column)
        for arm, one in arms.items():
            colour, layers = looks[arm][0], list(zip(*one.seeds.values(), strict=True))
            places = range(1, len(layers) + 1)
            panel.fill_between(places, [*map(min, layers)], [*map(max, layers)], color=colour, alpha=0.18, linewidth=0)
            panel.plot(places, [math.fsum(values) / len(values) for values in layers], color=colour, linewidth=1.6)
        numbers = [value for one in arms.values() for values in one.seeds.values() for value in values]
        if all(value > 0 for value in numbers):
            panel.set_yscale("log")
        elif near := float(f"{statistics.median(map(abs, numbers)):.1g}"):  # some are negative
            _scale_around_zero(panel, near, max(map(abs, numbers)))
            title += f"; linear within ±{near:g}"
        panel.set_title(fold_label(title, 40), fontsize=8.5, loc="left")
        panel.set_xlabel("layer", fontsize=8)
        tick_layers(panel)
    drawn = dict.fromkeys(arm for numbers in known.numbers.values() for arm in numbers)
    style.add_legend(figure, [style.create_entry(looks[arm], arm, linewidth=2) for arm in drawn])
    return figure


def _scale_around_zero(panel: Axes, near: float, largest: float) -> None:
    """Make the y axis of a panel logarithmic on both sides of zero and linear within `near`. Ticks are at zero, at
    `near` and at the powers of ten up to `largest` whose labels do not touch that of `near`."""
    first, last = (math.floor(math.log10(value)) for value in (near, largest))
    ends = [near, *(power for k in range(first, last + 1) if (power := 10.0**k) > 2 * near)]
    panel.set_yscale("symlog", linthresh=near)
    ticks = [*(-end for end in reversed(ends)), 0.0, *ends]
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def _format(one: LayerDifference) -> str:
    if one.estimate is None:
        return NOTHING
    if not one.is_ratio:
        return format_estimate(one.estimate, sign=True)
    mean, ends = math.exp(one.estimate.mean), one.estimate.interval
    span = f" ({format_number(math.exp(ends[0]), 3)} to {format_number(math.exp(ends[1]), 3)})" if ends else ""
    return f"times {format_number(mean, 3)}{span}"
