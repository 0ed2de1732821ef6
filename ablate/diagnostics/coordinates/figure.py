"""The figure of a coordinate check: models side by side, sizes across, one line for each part of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ablate.diagnostics.coordinates.check import Coordinates
from ablate.diagnostics.coordinates.flatness import LOGITS, align, find_group
from ablate.diagnostics.coordinates.sizes import AXES
from ablate.plots import style
from ablate.plots.layers import MAP, scale_log
from ablate.plots.panels import create_panels, fold_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Coordinate check: flat where the settings hold at every size"
_ROWS = tuple((axis, quantity) for axis in AXES for quantity in (0, 1))
Lines = dict[str, list[float]]


def draw(checks: Mapping[str, Coordinates]) -> Figure:
    """Return the figure of models by label: rows for activations at initialisation and for their change after the last
    update, over the width and then over the depth, each on one scale for all models."""
    names = [label for _ in _ROWS for label in checks]
    figure, axes = create_panels(TITLE, names, across=len(checks))
    for row, (axis, quantity) in enumerate(_ROWS):
        panels = axes[row * len(checks) : (row + 1) * len(checks)]
        for panel, (label, check) in zip(panels, checks.items(), strict=True):
            _draw_panel(panel, axis, [*check.courses[axis]], _list_lines(check, axis, quantity))
            if row == 0:
                panel.set_title(label, fontsize=10, loc="left")
        updates = next(iter(checks.values())).facts["updates"]
        what = f"change after {updates} updates" if quantity else "activations at initialisation"
        panels[0].set_ylabel(fold_label(f"RMS of {what}"))
        limits = [limit for panel in panels for limit in panel.get_ylim()]
        for panel in panels:
            panel.set_ylim(min(limits), max(limits))
        panels[-1].legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _list_lines(check: Coordinates, axis: str, quantity: int) -> Lines:
    """Return part -> its value at each size; parts inside of layers are in the table alone."""
    parts = align(axis, check.courses[axis])
    return {
        part: [course[-1 if quantity else 0][quantity] for course in courses]
        for part, courses in parts.items()
        if find_group(part) != "sublayers"
    }


def _draw_panel(panel: Axes, axis: str, sizes: list[int], lines: Lines) -> None:
    from matplotlib import colormaps

    shades = colormaps[MAP]
    for place, (part, values) in enumerate(lines.items()):
        shade = shades(place / max(1, len(lines) - 1) * 0.9)
        dashes = "--" if part == LOGITS else "-"
        panel.plot(sizes, values, dashes, color=shade, marker="o", markersize=3.5, linewidth=1.3, label=part)
    panel.set_xscale("log")
    style.label_log_ticks(panel.xaxis)
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.minorticks_off()
    panel.set_xlabel(axis)
    scale_log(panel, [value for values in lines.values() for value in values])
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(True, which="major", axis="y", color="#e6e6e6", linewidth=0.7)
