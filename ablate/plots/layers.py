"""Numbers of the layers of several models on one scale, in colours that colour-blind readers can distinguish."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ablate.plots.figure import Axis, Bar, Figure, Panel, Part, list_entries
from ablate.plots.marks import Band, Bars, Cells, Line, Mark, Span
from ablate.plots.style import Looks, choose_looks

Course: TypeAlias = Mapping[int, Sequence[float]]
"""Tokens or images seen -> a number of each layer."""
Matrix: TypeAlias = NDArray[np.float64]

MOST_MATRICES = 6
"""Layers of a model whose matrices are drawn, from the first to the last."""
HIGHEST = 1.0
"""The end of the colour scale of matrices: larger values, as in the first layer of Post-LN, have the colour of 1."""
WIDE = (7.4, 3.6)  # inches of a single panel


class LayerTable(Protocol):
    """Rows of numbers, each with its "layer"."""

    @property
    def rows(self) -> Sequence[Mapping[str, float]]:
        """The rows."""

    def column(self, name: str) -> list[float]:
        """Return the values of one name, in the order of the rows; NaN for a row without one."""

    def has(self, name: str) -> bool:
        """Return whether some row has it."""


def map_distances(matrix: Matrix, top: float, title: str, bar: Bar | None = None) -> Panel:
    """Return values [distance, layer], coloured from 0 to `top`."""
    edge = len(matrix) + 0.5
    cells = Cells(matrix, (0, top), extent=(0.5, edge, 0.5, edge))
    layers, distances = (Axis(label, numbers="layers", grid=False) for label in ("layer l", "n-th subsequent layer"))
    return Panel([cells], layers, distances, title, bar)


def draw_heat_maps(name: str, title: str, matrices: Mapping[str, Matrix], label: str) -> Figure:
    """Return one map for each model: layer l across, distance n upwards, and one colour scale for all."""
    top = max((float(np.nanmax(m)) for m in matrices.values() if np.isfinite(m).any()), default=1.0) or 1.0
    panels = [map_distances(matrix, top, model) for model, matrix in matrices.items()]
    return Figure(name, title, [Part(panels, bar=Bar(label, (0, top)))])


def list_bars(tables: Mapping[str, LayerTable], column: str) -> list[Mark]:
    """Return grouped bars over the removed layers."""
    looks, width = choose_looks(tables), 0.8 / len(tables)
    marks: list[Mark] = [Span(0, 0, upright=False, colour="black")]
    for place, (name, table) in enumerate(tables.items()):
        layers = np.array(table.column("layer")) + (place - (len(tables) - 1) / 2) * width
        marks.append(Bars(layers.tolist(), table.column(column), width, looks[name][0]))
    return marks


def draw_bars(name: str, title: str, tables: Mapping[str, LayerTable], columns: Mapping[str, str]) -> Figure:
    """Return grouped bars over the layers, one panel for each of `columns` that some table has."""
    known = {column: label for column, label in columns.items() if any(t.has(column) for t in tables.values())}
    depth = max(len(table.rows) for table in tables.values())
    width = max(6.5, 0.3 * depth * (1 + 0.35 * len(tables)))
    layers = Axis("removed layer", numbers="layers", grid=False)
    panels = [Panel(list_bars(tables, column), layers, Axis(label)) for column, label in known.items()]
    looks = {model: (colour, "s") for model, (colour, _) in choose_looks(tables).items()}
    return Figure(name, title, [Part(panels, 1, size=(width, 3.1 * len(panels)))], entries=list_entries(looks, ""))


def list_lines(tables: Mapping[str, LayerTable], column: str, looks: Looks) -> list[Mark]:
    """Return one line for each model that has `column` over the layers, with a band of COLUMN_error."""
    marks: list[Mark] = []
    for name, (colour, marker) in looks.items():
        table = tables[name]
        if not table.has(column):
            continue
        x, y = table.column("layer"), np.array(table.column(column), dtype=float)
        marks.append(Line(x, y.tolist(), colour, marker=marker))
        if table.has(f"{column}_error"):
            error = np.array(table.column(f"{column}_error"), dtype=float)
            marks.append(Band(x, (y - error).tolist(), (y + error).tolist(), colour))
    return marks


def build_line_panel(
    tables: Mapping[str, LayerTable], column: str, label: str, log: bool, marks: Sequence[Mark], title: str = ""
) -> Panel:
    """Return `marks` over the layers; `log`: on a logarithmic axis, if some value of `column` is above zero."""
    log = log and any(value > 0 for table in tables.values() for value in table.column(column))
    return Panel(marks, Axis("layer l", numbers="layers", grid=False), Axis(label, log=log), title)


def draw_lines(
    name: str, title: str, tables: Mapping[str, LayerTable], columns: Mapping[str, str], log: bool = False
) -> Figure:
    """Return one line for each model over the layers, one panel for each of `columns` that some table has, with a band
    of one standard error for a column that has one (`COLUMN_error`)."""
    looks = choose_looks(tables)
    panels = [
        build_line_panel(tables, column, label, log, list_lines(tables, column, looks))
        for column, label in columns.items()
        if any(t.has(column) for t in tables.values())
    ]
    return Figure(name, title, [Part(panels, size=WIDE if len(panels) == 1 else None)], entries=list_entries(looks))


def draw_by_layer_and_depth(name: str, title: str, tables: Mapping[str, LayerTable], column: str, label: str) -> Figure:
    """Return one line for each model over the layers, logarithmic; if the models have several depths, also, in a second
    panel, the value of layer 1 of each model over its number of layers."""
    depths, looks = {model: len(table.rows) for model, table in tables.items()}, choose_looks(tables)
    if len(set(depths.values())) == 1:
        return draw_lines(name, title, tables, {column: label}, log=True)
    by_layer = build_line_panel(tables, column, label, True, list_lines(tables, column, looks))
    points = {model: [(depths[model], table.column(column)[0])] for model, table in tables.items()}
    by_depth = build_depth_panel(points, "the same, from layer 1", looks)
    return Figure(name, title, [Part([by_layer, by_depth], size=(10, WIDE[1]))], entries=list_entries(looks))


def build_depth_panel(
    lines: Mapping[str, Sequence[tuple[int, float]]], label: str, looks: Looks, dots: Sequence[Mark] = ()
) -> Panel:
    """Return a line for each name through its points (number of layers, value), logarithmic, and `dots`."""
    marks: list[Mark] = []
    for name, points in lines.items():
        depths, values = zip(*sorted(points), strict=True)
        marks.append(Line(depths, values, looks[name][0], marker=looks[name][1]))
    ticks = {depth: str(depth) for depth in sorted({depth for points in lines.values() for depth, _ in points})}
    log = any(value > 0 for points in lines.values() for _, value in points)
    return Panel([*marks, *dots], Axis("number of layers L", ticks=ticks, grid=False), Axis(label, log=log))


def scale_courses(label: str, courses: Sequence[Course]) -> Bar:
    """Return the colour scale of all numbers of `courses`."""
    values = [v for course in courses for row in course.values() for v in row if math.isfinite(v)] or [0.0]
    return Bar(label, (min(values), max(values)), log=0 < min(values) < max(values))


def map_course(course: Course, bar: Bar, unit: str, title: str, own_bar: bool = False) -> Panel:
    """Return a number of the layers, tokens or images seen across, the layer upwards."""
    seen = sorted(course)
    cells = Cells(np.array([course[step] for step in seen]).T, bar.limits, log=bar.log, edges=_find_edges(seen))
    across, upwards = Axis(f"{unit} seen", numbers="items", grid=False), Axis("layer l", numbers="layers", grid=False)
    return Panel([cells], across, upwards, title, bar if own_bar else None)


def _find_edges(seen: Sequence[int]) -> list[float]:
    """Return the borders of cells around the moments `seen`."""
    x = np.array(seen, dtype=float)
    if len(x) == 1:
        return [float(x[0] * 0.5), float(x[0] * 1.5 + 1)]
    middle = (x[1:] + x[:-1]) / 2
    return [float(2 * x[0] - middle[0]), *middle.tolist(), float(2 * x[-1] - middle[-1])]


def arrange_matrices(matrices: Mapping[str, Sequence[tuple[str, Matrix]]], label: str, title: str = "") -> Part:
    """Return a row of heat maps for each model, of at most six of its layers, coloured from 0 to the largest value of
    all, and at most to `HIGHEST`."""
    picked = {name: pick_spread(maps) for name, maps in matrices.items()}
    finite = [float(np.nanmax(m)) for maps in picked.values() for _, m in maps if not np.isnan(m).all()]
    top, across = max(finite, default=0.0) or 1.0, max(map(len, picked.values()))
    limits, panels = (0, min(top, HIGHEST)), []
    for name, maps in picked.items():
        for place, (heading, matrix) in enumerate(maps):
            panels.append(Panel([Cells(matrix, limits)], y=Axis(name if place == 0 else ""), title=heading))
        panels += [Panel([], bare=True)] * (across - len(maps))
    bar = Bar(label, limits, extends=top > HIGHEST)
    size = (max(6.0, 1.9 * across + 1.4), 2.25 * len(picked))
    return Part(panels, across, title, bar, size=size)


def pick_spread(items: Sequence[Any], most: int = MOST_MATRICES) -> list[Any]:
    """Return at most `most` of `items`, evenly spread, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
