"""The figure of a grid: the objective and the share of failed seeds against the searched parameter, for each arm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ablate.config.formatting import format_setting, is_number
from ablate.plots import style
from ablate.reports.findings import objective_sign
from ablate.reports.labels import label_metric, label_parameter
from ablate.sweeps.records import SweepRecord
from ablate.verdict.records import Compared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

_WIDTH = 0.6
"""Share of the distance between two points that the arms of one point occupy."""


def find_axis(record: SweepRecord) -> str | None:
    """Return the path on the figure's x axis: the searched one, if it is a number."""
    points = [cell.point for cell in record.spec.cells.values()]
    paths = {path for point in points for path in point}
    if len(paths) != 1 or len({*map(str, (value for point in points for value in point.values()))}) < 2:
        return None
    (path,) = paths
    return path if all(is_number(point.get(path)) for point in points) else None


def caption_grid(record: SweepRecord, path: str) -> str:
    """Return the caption of `draw_grid`."""
    return (
        f"{record.spec.objective.title} on fresh seeds against {label_parameter(path)}: every seed that trained, "
        "their mean with its 95 % interval, and below it the share of failed seeds with its exact 95 % interval."
    )


def draw_grid(record: SweepRecord, compared: Mapping[str, Compared], path: str) -> Figure:
    """Return the objective of each arm at each value of `path`, and below it the share of failed seeds."""
    spec, cells = record.spec, record.spec.cells
    own = style.choose_looks(spec.own_arms)
    better = "lower" if objective_sign(record) > 0 else "higher"
    figure, axes = style.create_canvas(
        f"{record.title}: {spec.objective.title} at each point of the grid",
        f"light: each fresh seed that trained; strong: their mean with its 95 % interval; {better} is better",
    )
    grid = figure.add_gridspec(2, 1, height_ratios=[1, 0.42])
    axes.set_subplotspec(grid[0])
    below = figure.add_subplot(grid[1], sharex=axes)
    below.spines[["top", "right"]].set_visible(False)
    below.grid(True, which="major", axis="y", color="#e6e6e6", linewidth=0.7)
    below.set_axisbelow(True)
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
    if record.trivial_loss is not None and spec.objective.metric == "val/loss" and math.isfinite(record.trivial_loss):
        axes.axhline(record.trivial_loss, color=style.GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            "knows only the frequencies",
            (0.995, record.trivial_loss),
            (0, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize=8,
            ha="right",
            color=style.GREY,
        )
    axes.set_ylabel(label_metric(spec.objective.metric, spec))
    axes.tick_params(axis="x", labelbottom=False, length=0)
    axes.grid(False, axis="x")
    below.set_ylabel("seeds that\nfail (%)")
    below.set_ylim(-8, 108)
    below.set_yticks([0, 50, 100])
    below.set_xticks(range(len(values)), [format_setting(value) for value in values])
    below.set_xlim(-0.5, len(values) - 0.5)
    below.set_xlabel(label_parameter(path))
    for axis in (axes, below):
        for edge in range(len(values) - 1):
            axis.axvline(edge + 0.5, color="#cccccc", linewidth=0.8, zorder=0.5)
    style.add_legend(figure, [style.create_entry(own[arm], arm, linestyle="none") for arm in arms])
    return figure
