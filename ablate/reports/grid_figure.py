"""The figure of a grid: the objective and the share of failed seeds against a searched parameter, for each arm; with a
column for each value of what else is searched."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ablate.config.formatting import format_setting, is_number, shorten_paths
from ablate.plots import style
from ablate.reports.findings import objective_sign
from ablate.reports.labels import LEARNING_RATE, label_metric, label_parameter
from ablate.sweeps.records import SweepRecord
from ablate.verdict.outcomes import LOSS
from ablate.verdict.records import Compared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 0.6
"""Share of the distance between two points that the arms of one point occupy."""
MOST_COLUMNS = 4


def find_axis(record: SweepRecord, most_columns: int = MOST_COLUMNS) -> str | None:
    """Return the path on the figure's x axis: the searched one or, of several, the learning rate; None if it is no
    number, or if all else takes more than `most_columns` values."""
    points = [cell.point for cell in record.spec.cells.values()]
    paths = list(dict.fromkeys(path for point in points for path in point))
    path = paths[0] if len(paths) == 1 else LEARNING_RATE
    if path not in paths or not all(is_number(point.get(path)) for point in points):
        return None
    columns = _list_columns(record, path)
    return path if len({str(point[path]) for point in points}) > 1 and len(columns) <= most_columns else None


def _list_columns(record: SweepRecord, path: str) -> dict[str, list[str]]:
    """Return the values of all that is searched beside `path` -> the cells there."""
    names = shorten_paths(list(dict.fromkeys(other for cell in record.spec.cells.values() for other in cell.point)))
    columns: dict[str, list[str]] = {}
    for name, cell in record.spec.cells.items():
        rest = {names[other]: format_setting(value) for other, value in cell.point.items() if other != path}
        columns.setdefault(", ".join(f"{other} = {value}" for other, value in rest.items()), []).append(name)
    return columns


def caption_grid(record: SweepRecord, path: str) -> str:
    """Return the caption of `draw_grid`."""
    return (
        f"{record.spec.objective.title} on fresh seeds against {label_parameter(path)}: every seed that trained, "
        "their mean with its 95 % interval, and below it the share of failed seeds with its exact 95 % interval."
    )


def draw_grid(record: SweepRecord, compared: Mapping[str, Compared], path: str) -> Figure:
    """Return the objective of each arm at each value of `path`, and below it the share of failed seeds."""
    spec, columns = record.spec, _list_columns(record, path)
    own = style.choose_looks(spec.own_arms)
    better = "lower" if objective_sign(record) > 0 else "higher"
    head = f"{record.title}: {spec.objective.title} at each point of the grid"
    text = f"light: each fresh seed that trained; strong: their mean with its 95 % interval; {better} is better"
    several = len(columns) > 1
    figure, axes = style.create_canvas("" if several else head, "" if several else text)
    if several:
        figure.set_size_inches(style.SIZE[0] * (0.25 + 0.6 * len(columns)), style.SIZE[1])
        figure.suptitle(f"{head}\n{text}", fontsize=10, x=0.01, ha="left")
    grid = figure.add_gridspec(2, len(columns), height_ratios=[1, 0.42])
    axes.set_subplotspec(grid[0, 0])
    below = figure.add_subplot(grid[1, 0], sharex=axes)
    for place, (title, names) in enumerate(columns.items()):
        if place:
            axes = figure.add_subplot(grid[0, place], sharey=axes)
            below = figure.add_subplot(grid[1, place], sharex=axes, sharey=below)
        _draw_column(axes, below, record, {name: compared[name] for name in names if name in compared}, path)
        if several:
            axes.annotate(title, (0.02, 0.04), xycoords="axes fraction", fontsize=9.5)
        if place:
            for panel in (axes, below):
                panel.tick_params(labelleft=False)
        else:
            axes.set_ylabel(label_metric(spec.objective.metric, spec))
            below.set_ylabel("seeds that\nfail (%)")
    style.add_legend(figure, [style.create_entry(own[arm], arm, linestyle="none") for arm in spec.own_arms])
    return figure


def _draw_column(axes: Axes, below: Axes, record: SweepRecord, compared: Mapping[str, Compared], path: str) -> None:
    """Draw the cells of one column: the objective above, the share of failed seeds below."""
    spec, cells = record.spec, record.spec.cells
    own = style.choose_looks(spec.own_arms)
    for panel in (axes, below):
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(True, which="major", axis="y", color="#e6e6e6", linewidth=0.7)
        panel.set_axisbelow(True)
    values = sorted({float(str(cell.point[path])) for cell in cells.values()})
    arms, step = list(spec.own_arms), _WIDTH / max(1, len(spec.own_arms) - 1)
    for name, c in compared.items():
        cell = cells[name]
        colour, marker = own[cell.arm]
        x = values.index(float(str(cell.point[path]))) + (arms.index(cell.arm) - (len(arms) - 1) / 2) * step
        seeds = [o.value for o in c.outcomes.values() if o.trained and o.value is not None]
        axes.plot([x] * len(seeds), seeds, "o", color=colour, alpha=0.3, markeredgewidth=0, markersize=4, zorder=2)
        if c.estimate is not None:
            axes.errorbar(x, c.estimate.mean, yerr=c.estimate.half_width, fmt=marker, color=colour, capsize=4, zorder=3)
        if c.failures is not None:
            share = 100 * c.failures.failed / c.failures.n
            reach = [[share - 100 * c.failures.low], [100 * c.failures.high - share]]
            below.errorbar(x, share, yerr=reach, fmt=marker, color=colour, capsize=4, zorder=3, clip_on=False)
    if record.trivial_loss is not None and spec.objective.metric == LOSS and math.isfinite(record.trivial_loss):
        _draw_trivial(axes, record.trivial_loss)
    axes.tick_params(axis="x", labelbottom=False, length=0)
    axes.grid(False, axis="x")
    below.set_ylim(-8, 108)
    below.set_yticks([0, 50, 100])
    below.set_xticks(range(len(values)), [format_setting(value) for value in values])
    below.set_xlim(-0.5, len(values) - 0.5)
    below.set_xlabel(label_parameter(path))
    for axis in (axes, below):
        for edge in range(len(values) - 1):
            axis.axvline(edge + 0.5, color="#cccccc", linewidth=0.8, zorder=0.5)


def _draw_trivial(axes: Axes, loss: float) -> None:
    """Draw the loss of a predictor that ignores its inputs."""
    axes.axhline(loss, color=style.GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate(
        "ignores its inputs",
        (0.995, loss),
        (0, 3),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        fontsize=8,
        ha="right",
        color=style.GREY,
    )
