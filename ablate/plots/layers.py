"""Numbers of the layers of several models on one scale, in colours that colour-blind readers can distinguish."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ablate.plots import style
from ablate.plots.panels import create_panels, fold_label, load_ticker, tick_layers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Course: TypeAlias = Mapping[int, Sequence[float]]
"""Tokens or images seen -> a number of each layer."""
Matrix: TypeAlias = NDArray[np.float64]

MAP = "cividis"  # made for colour-blind readers, and even in lightness


class LayerTable(Protocol):
    """Rows of numbers, each with its "layer"."""

    @property
    def rows(self) -> Sequence[Mapping[str, float]]:
        """The rows."""

    def column(self, name: str) -> list[float]:
        """Return the values of one name, in the order of the rows; NaN for a row without one."""

    def has(self, name: str) -> bool:
        """Return whether some row has it."""


def draw_heat_maps(title: str, matrices: Mapping[str, Matrix], label: str) -> Figure:
    """Return one map for each model: layer l across, distance n upwards, and one colour scale for all."""
    top = max((float(np.nanmax(m)) for m in matrices.values() if np.isfinite(m).any()), default=1.0) or 1.0
    figure, axes = create_panels(title, list(matrices))
    image = None
    for panel, (name, matrix) in zip(axes, matrices.items(), strict=True):
        image = draw_heat_map(panel, matrix, top)
        panel.set_title(name, fontsize=10, loc="left")
    assert image is not None
    figure.colorbar(image, ax=axes, label=label, shrink=0.9, pad=0.015)
    return figure


def draw_heat_map(panel: Axes, matrix: Matrix, top: float) -> Any:
    """Draw values [distance, layer] in one panel, coloured from 0 to `top`, and return the image."""
    edge = len(matrix) + 0.5
    image = panel.imshow(
        matrix, origin="lower", cmap=MAP, vmin=0, vmax=top, extent=(0.5, edge, 0.5, edge), aspect="auto"
    )
    panel.set_xlabel("layer l")
    panel.set_ylabel("n-th subsequent layer")
    tick_layers(panel, both=True)
    return image


def draw_bars(title: str, tables: Mapping[str, LayerTable], columns: Mapping[str, str]) -> Figure:
    """Return grouped bars over the layers, one panel for each of `columns` that some table has."""
    known = {name: label for name, label in columns.items() if any(t.has(name) for t in tables.values())}
    depth = max(len(table.rows) for table in tables.values())
    figure, axes = create_panels(title, list(known), width=max(6.5, 0.3 * depth * (1 + 0.35 * len(tables))), across=1)
    for panel, (column, label) in zip(axes, known.items(), strict=True):
        draw_bar_panel(panel, tables, column, label)
    add_legend(figure, style.choose_looks(tables), lines=False)
    return figure


def draw_bar_panel(panel: Axes, tables: Mapping[str, LayerTable], column: str, label: str) -> None:
    """Draw grouped bars over the removed layers."""
    looks, width = style.choose_looks(tables), 0.8 / len(tables)
    for place, (name, table) in enumerate(tables.items()):
        layers = np.array(table.column("layer")) + (place - (len(tables) - 1) / 2) * width
        panel.bar(layers, table.column(column), width, color=looks[name][0])
    panel.axhline(0, color="black", linewidth=0.7)
    panel.set_xlabel("removed layer")
    panel.set_ylabel(fold_label(label))
    clear_frame(panel)


def draw_lines(title: str, tables: Mapping[str, LayerTable], columns: Mapping[str, str], log: bool = False) -> Figure:
    """Return one line for each model over the layers, one panel for each of `columns` that some table has, with a band
    of one standard error for a column that has one (`COLUMN_error`)."""
    known = {name: label for name, label in columns.items() if any(t.has(name) for t in tables.values())}
    figure, axes = create_panels(title, list(known), width=6.5 if len(known) == 1 else None)
    for panel, (column, label) in zip(axes, known.items(), strict=True):
        draw_line_panel(panel, tables, column, label, log)
    add_legend(figure, style.choose_looks(tables))
    return figure


def draw_by_layer_and_depth(title: str, tables: Mapping[str, LayerTable], column: str, label: str) -> Figure:
    """Return one line for each model over the layers, logarithmic; if the models have several depths, also, in a second
    panel, the value of layer 1 of each model over its number of layers."""
    depths = {name: len(table.rows) for name, table in tables.items()}
    if len(set(depths.values())) == 1:
        return draw_lines(title, tables, {column: label}, log=True)
    figure, (by_layer, by_depth) = create_panels(title, ["layer", "depth"], width=10)
    draw_line_panel(by_layer, tables, column, label, log=True)
    points = {name: [(depths[name], table.column(column)[0])] for name, table in tables.items()}
    draw_depth_panel(by_depth, points, "the same, from layer 1", style.choose_looks(tables))
    add_legend(figure, style.choose_looks(tables))
    return figure


def draw_depth_panel(
    panel: Axes, lines: Mapping[str, Sequence[tuple[int, float]]], label: str, looks: style.Looks
) -> None:
    """Draw a line for each name through its points (number of layers, value), logarithmic."""
    for name, points in lines.items():
        depths, values = zip(*sorted(points), strict=True)
        colour, marker = looks[name]
        panel.plot(depths, values, color=colour, marker=marker, linewidth=1.4, label=style.escape_math(name))
    panel.set_xlabel("number of layers L")
    panel.set_ylabel(fold_label(label))
    clear_frame(panel)
    panel.set_xticks(sorted({depth for points in lines.values() for depth, _ in points}))
    scale_log(panel, [value for points in lines.values() for _, value in points])


def draw_line_panel(
    panel: Axes,
    tables: Mapping[str, LayerTable],
    column: str,
    label: str,
    log: bool,
    looks: style.Looks | None = None,
) -> None:
    """Draw one line for each model that has `column` over the layers, with a band of COLUMN_error; `looks`: its colour
    and marker, by default one for each model."""
    for name, (colour, marker) in (looks or style.choose_looks(tables)).items():
        table = tables[name]
        if not table.has(column):
            continue
        x, y = np.array(table.column("layer")), np.array(table.column(column), dtype=float)
        panel.plot(x, y, color=colour, marker=marker, markersize=4.5, linewidth=1.4)
        if table.has(f"{column}_error"):
            error = np.array(table.column(f"{column}_error"), dtype=float)
            panel.fill_between(x, y - error, y + error, color=colour, alpha=0.2, linewidth=0)
    panel.set_xlabel("layer l")
    panel.set_ylabel(fold_label(label))
    if log:
        scale_log(panel, [value for table in tables.values() for value in table.column(column)])
    clear_frame(panel)


def scale_log(panel: Axes, values: Sequence[float]) -> None:
    """Make the y axis logarithmic, if some value is above zero."""
    if any(value > 0 for value in values):
        panel.set_yscale("log")
        style.label_log_ticks(panel.yaxis)


def draw_courses(title: str, histories: Mapping[str, Course], label: str, unit: str) -> Figure:
    """Return one map for each run of a number of its layers in training: tokens or images seen across, the layer
    upwards. One colour scale for all, logarithmic where all numbers are above zero."""
    scale = choose_scale([row for course in histories.values() for row in course.values()])
    figure, axes = create_panels(title, list(histories))
    mesh = None
    for panel, (name, course) in zip(axes, histories.items(), strict=True):
        mesh = draw_course(panel, course, scale, unit)
        panel.set_title(name, fontsize=10, loc="left")
    assert mesh is not None
    bar = figure.colorbar(mesh, ax=axes, label=fold_label(label), shrink=0.9, pad=0.015)
    if bar.ax.get_yscale() == "log":
        style.label_log_ticks(bar.ax.yaxis)
    return figure


def choose_scale(rows: Sequence[Sequence[float]]) -> Any:
    """Return the colour scale of all numbers in `rows`."""
    from matplotlib.colors import LogNorm, Normalize

    values = [value for row in rows for value in row if math.isfinite(value)] or [0.0]
    low, high = min(values), max(values)
    return LogNorm(low, high) if 0 < low < high else Normalize(low, high)


def draw_course(panel: Axes, course: Course, scale: Any, unit: str) -> Any:
    """Draw a number of the layers in one panel, tokens or images seen across, the layer upwards; return the mesh."""
    from matplotlib.ticker import EngFormatter

    seen = sorted(course)
    matrix = np.array([course[step] for step in seen], dtype=float).T
    mesh = panel.pcolormesh(_cell_edges(seen), np.arange(len(matrix) + 1) + 0.5, matrix, norm=scale, cmap=MAP)
    panel.set_xlabel(f"{unit} seen")
    panel.set_ylabel("layer l")
    panel.xaxis.set_major_formatter(EngFormatter(sep=" "))
    panel.xaxis.set_major_locator(load_ticker().MaxNLocator(4))
    panel.yaxis.set_major_locator(load_ticker().MaxNLocator(integer=True))
    return mesh


def _cell_edges(seen: Sequence[int]) -> Matrix:
    """Return the borders of cells around the moments `seen`."""
    x = np.array(seen, dtype=float)
    if len(x) == 1:
        return np.array([x[0] * 0.5, x[0] * 1.5 + 1])
    middle = (x[1:] + x[:-1]) / 2
    return np.concatenate([[x[0] - (middle[0] - x[0])], middle, [x[-1] + (x[-1] - middle[-1])]])


def add_legend(figure: Figure, looks: style.Looks, lines: bool = True) -> None:
    """Add the colour, and with `lines` the marker, of each name below the panels."""
    entries = [
        style.create_entry(look if lines else (look[0], "s"), name, linestyle="-" if lines else "none")
        for name, look in looks.items()
    ]
    style.add_legend(figure, entries)


def clear_frame(panel: Axes) -> None:
    """Leave of the frame the two axes, with lines at the ticks of y, and layers at those of x."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(True, which="major", axis="y", color="#e6e6e6", linewidth=0.7)
    panel.set_axisbelow(True)
    tick_layers(panel)
