"""The figures of the measurements: several models on one scale, in colours that colour-blind readers tell apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ablate.diagnostics.measures.base import Result
from ablate.reports import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAP = "cividis"  # made for colour-blind readers, and even in lightness
PANEL = (3.3, 2.9)  # inches
ACROSS = 4  # panels side by side


def save(figure: Figure, file: Path) -> list[Path]:
    """Writes `file` as PNG and SVG, the same bytes for the same numbers."""
    from matplotlib import rc_context

    paths = [file.with_suffix(suffix) for suffix in (".png", ".svg")]
    with rc_context({"svg.hashsalt": file.stem}):
        figure.savefig(paths[0], metadata={"Software": None})
        figure.set_layout_engine("none")  # it has its layout, which takes most of the time
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def heat_maps(title: str, results: Mapping[str, Result], label: str, column: str) -> Figure:
    """One map for each model: layer l across, distance n upwards, and one colour scale for all."""
    matrices = {name: _matrix(result, column) for name, result in results.items()}
    top = max((float(np.nanmax(m)) for m in matrices.values() if np.isfinite(m).any()), default=1.0) or 1.0
    figure, axes = panels(title, list(matrices))
    image = None
    for panel, (name, matrix) in zip(axes, matrices.items(), strict=True):
        image = _map(panel, matrix, top)
        panel.set_title(name, fontsize=10, loc="left")
    assert image is not None
    figure.colorbar(image, ax=axes, label=label, shrink=0.9, pad=0.015)
    return figure


def _map(panel: Axes, matrix: Any, top: float) -> Any:
    """Distances [distance, layer] in one panel, coloured from 0 to `top`."""
    edge = len(matrix) + 0.5
    image = panel.imshow(
        matrix, origin="lower", cmap=MAP, vmin=0, vmax=top, extent=(0.5, edge, 0.5, edge), aspect="auto"
    )
    panel.set_xlabel("layer l")
    panel.set_ylabel("distance n (layers)")
    _whole(panel, both=True)
    return image


def _matrix(result: Result, column: str) -> Any:
    """[distance, layer] of the rows; NaN where there is no such pair."""
    size = int(max(row["layer"] for row in result.rows))
    matrix = np.full((size, size), np.nan)
    for row in result.rows:
        matrix[int(row["distance"]) - 1, int(row["layer"]) - 1] = row[column]
    return matrix


def bars(title: str, results: Mapping[str, Result], columns: Mapping[str, str]) -> Figure:
    """Grouped bars over the layers, one panel for each of `columns` that some result has."""
    known = {name: label for name, label in columns.items() if any(r.has(name) for r in results.values())}
    depth = max(len(result.rows) for result in results.values())
    figure, axes = panels(title, list(known), width=max(6.5, 0.3 * depth * (1 + 0.35 * len(results))), across=1)
    looks = style.looks(results)
    width = 0.8 / len(results)
    for panel, (column, label) in zip(axes, known.items(), strict=True):
        for place, (name, result) in enumerate(results.items()):
            layers = np.array(result.column("layer")) + (place - (len(results) - 1) / 2) * width
            panel.bar(layers, result.column(column), width, color=looks[name][0], label=name)
        panel.axhline(0, color="black", linewidth=0.7)
        panel.set_xlabel("layer that is left out")
        panel.set_ylabel(_folded(label))
        _clean(panel)
    _legend(figure, results, lines=False)
    return figure


def lines(title: str, results: Mapping[str, Result], columns: Mapping[str, str], log: bool = False) -> Figure:
    """One line for each model over the layers, one panel for each of `columns` that some result has; bands of one
    standard error where there are any."""
    known = {name: label for name, label in columns.items() if any(r.has(name) for r in results.values())}
    figure, axes = panels(title, list(known), width=6.5 if len(known) == 1 else None)
    looks = style.looks(results)
    for panel, (column, label) in zip(axes, known.items(), strict=True):
        for name, result in results.items():
            if not result.has(column):
                continue
            colour, marker = looks[name]
            x, y = np.array(result.column("layer")), np.array(result.column(column), dtype=float)
            panel.plot(x, y, color=colour, marker=marker, markersize=4.5, linewidth=1.4)
            if result.has(f"{column}_error"):
                error = np.array(result.column(f"{column}_error"), dtype=float)
                panel.fill_between(x, y - error, y + error, color=colour, alpha=0.2, linewidth=0)
        panel.set_xlabel("layer l")
        panel.set_ylabel(_folded(label))
        if log and any(value > 0 for r in results.values() for value in r.column(column)):
            panel.set_yscale("log")
        _clean(panel)
    _legend(figure, results)
    return figure


def courses(title: str, histories: Mapping[str, Mapping[int, Sequence[float]]], label: str, unit: str) -> Figure:
    """How a number of each layer changes in training, one map for each run on one colour scale, logarithmic where all
    numbers are above zero: tokens or images seen across, the layer upwards."""
    scale = _norm([row for course in histories.values() for row in course.values()])
    figure, axes = panels(title, list(histories))
    mesh = None
    for panel, (name, course) in zip(axes, histories.items(), strict=True):
        mesh = _course(panel, course, scale, unit)
        panel.set_title(name, fontsize=10, loc="left")
    assert mesh is not None
    figure.colorbar(mesh, ax=axes, label=_folded(label), shrink=0.9, pad=0.015)
    return figure


def _norm(rows: Sequence[Sequence[float]]) -> Any:
    """The colour scale of all numbers in `rows`."""
    from matplotlib.colors import LogNorm, Normalize

    values = [value for row in rows for value in row if math.isfinite(value)] or [0.0]
    low, high = min(values), max(values)
    return LogNorm(low, high) if 0 < low < high else Normalize(low, high)


def _course(panel: Axes, course: Mapping[int, Sequence[float]], scale: Any, unit: str) -> Any:
    """One number of the layers in one panel: tokens or images seen across, the layer upwards."""
    from matplotlib.ticker import EngFormatter

    seen = sorted(course)
    matrix = np.array([course[step] for step in seen], dtype=float).T
    mesh = panel.pcolormesh(_edges(seen), np.arange(len(matrix) + 1) + 0.5, matrix, norm=scale, cmap=MAP)
    panel.set_xlabel(f"{unit} seen")
    panel.set_ylabel("layer l")
    panel.xaxis.set_major_formatter(EngFormatter(sep=" "))
    panel.xaxis.set_major_locator(_ticker().MaxNLocator(4))
    panel.yaxis.set_major_locator(_ticker().MaxNLocator(integer=True))
    return mesh


def _edges(seen: Sequence[int]) -> Any:
    """The borders of cells around the moments `seen`."""
    x = np.array(seen, dtype=float)
    if len(x) == 1:
        return np.array([x[0] * 0.5, x[0] * 1.5 + 1])
    middle = (x[1:] + x[:-1]) / 2
    return np.concatenate([[x[0] - (middle[0] - x[0])], middle, [x[-1] + (x[-1] - middle[-1])]])


def panels(title: str, names: Sequence[str], width: float | None = None, across: int = ACROSS) -> tuple[Figure, Any]:
    """A figure with one axes for each name, `across` side by side, as a list; no global state of pyplot is touched."""
    from matplotlib.figure import Figure

    columns = min(across, len(names))
    rows = -(-len(names) // columns)
    size = (width or columns * PANEL[0] + 0.9, rows * (PANEL[1] + 0.2) + 0.7)
    figure = Figure(figsize=size, dpi=style.DPI, layout="constrained")
    figure.suptitle(_folded(title, int(11 * size[0])), fontsize=12, x=0.01, ha="left")
    found = list(figure.subplots(rows, columns, squeeze=False).flat)
    for empty in found[len(names) :]:
        empty.set_visible(False)
    return figure, found[: len(names)]


def _legend(figure: Figure, names: Mapping[str, Any], lines: bool = True) -> None:
    known = style.looks(names)
    marked = {name: look if lines else (look[0], "s") for name, look in known.items()}
    style.legend(figure, [style.entry(look, name, linestyle="-" if lines else "none") for name, look in marked.items()])


def _clean(panel: Axes) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(True, which="major", axis="y", color="#e6e6e6", linewidth=0.7)
    panel.set_axisbelow(True)
    _whole(panel)


def _whole(panel: Axes, both: bool = False) -> None:
    """Layers are whole numbers."""
    for axis in (panel.xaxis, panel.yaxis) if both else (panel.xaxis,):
        axis.set_major_locator(_ticker().MaxNLocator(8, integer=True, min_n_ticks=1))


def _ticker() -> Any:
    from matplotlib import ticker

    return ticker


def _folded(label: str, width: int = 34) -> str:
    """A label in lines that fit beside a panel."""
    import textwrap

    return "\n".join(textwrap.wrap(label, width))


def overview(results: Mapping[str, Result], history: Mapping[str, Mapping[int, Sequence[float]]], unit: str) -> Figure:
    """One run: what each number of the layers did in training, a map each, and the angular distances at the end."""
    from ablate.diagnostics.measures.base import measurements

    labels = {column: label for kind in measurements.values() for column, label in kind.columns.items()}
    maps = {name: result for name, result in results.items() if any("distance" in row for row in result.rows)}
    figure, axes = panels("The layers in training", [*history, *maps], across=3)
    for panel, (column, course) in zip(axes, history.items(), strict=False):
        mesh = _course(panel, course, _norm(list(course.values())), unit)
        figure.colorbar(mesh, ax=panel, shrink=0.9, pad=0.02)
        panel.set_title(_folded(labels.get(column, column), 44), fontsize=8.5, loc="left")
    for panel, result in zip(axes[len(history) :], maps.values(), strict=True):
        matrix = _matrix(result, "angular_distance")
        figure.colorbar(_map(panel, matrix, float(np.nanmax(matrix)) or 1.0), ax=panel, shrink=0.9, pad=0.02)
        panel.set_title("angular distance at the end (share of pi)", fontsize=8.5, loc="left")
    return figure
