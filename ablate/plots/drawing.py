"""Draws a figure, once, and writes it as SVG and as PNG."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from ablate.plots.figure import Axis, Bar, Entry, Figure, Panel, Part
from ablate.plots.marks import DASHES, Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as DrawnAxis
    from matplotlib.figure import Figure as Drawn
    from matplotlib.figure import FigureBase

DPI = 150
PANEL = (3.3, 3.1)  # inches
_GRID = "#e6e6e6"
_FONTS = ["DejaVu Sans", "Verdana"]
"""Fonts of an SVG. Texts are placed by the widths of the first; a browser without it takes narrower ones."""
_LETTER = 0.0072  # inches of a letter's width, for each point of the font's size
_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


def save(figure: Figure, folder: Path) -> list[Path]:
    """Write NAME.png and NAME.svg, the same bytes for the same figure, and return both paths."""
    drawn, tips = draw(figure)
    paths = [folder / f"{figure.name}.png", folder / f"{figure.name}.svg"]
    _write_png(drawn, paths[0])
    drawn.set_layout_engine("none")  # it has its layout
    paths[1].write_text(_to_svg(drawn, tips, figure.name), encoding="utf-8")
    return paths


def to_svg(figure: Figure) -> str:
    """Return the figure as an SVG element, whose text is text and whose points have titles."""
    return _to_svg(*draw(figure), figure.name)


def save_png(figure: Figure, folder: Path) -> Path:
    """Write NAME.png, the same bytes for the same figure, and return its path."""
    file = folder / f"{figure.name}.png"
    _write_png(draw(figure)[0], file)
    return file


def _write_png(drawn: Drawn, file: Path) -> None:
    """Write a drawn figure. Matplotlib's `savefig` would draw it twice."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(drawn).print_png(file, metadata={"Software": None})


def draw(figure: Figure) -> tuple[Drawn, dict[str, Sequence[str]]]:
    """Return a figure as drawn by matplotlib, and the titles of its points by the id of their group. No global state
    of pyplot is touched."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Drawn

    tips: dict[str, Sequence[str]] = {}
    sizes = [part.size or _measure(part) for part in figure.parts]
    headed = [inches + (0.4 if part.title else 0) for (_, inches), part in zip(sizes, figure.parts, strict=True)]
    width, height = figure.size or (max(inches for inches, _ in sizes), sum(headed) + 0.4 + 0.3 * bool(figure.entries))
    with rc_context({"text.parse_math": False, "axes.axisbelow": True, "legend.frameon": False}):
        drawn = Drawn(figsize=(width, height), dpi=DPI)
        _write_heading(drawn, figure)
        if len(figure.parts) == 1:
            _draw_part(drawn, figure.parts[0], tips)
        else:
            below = drawn.subfigures(len(figure.parts), 1, squeeze=False, height_ratios=headed)[:, 0]
            for place, part in zip(below, figure.parts, strict=True):
                _draw_part(place, part, tips)
        if figure.entries:
            _add_legend(drawn, figure.entries)
    return drawn, tips


def _write_heading(drawn: Drawn, figure: Figure) -> None:
    """Write title and subtitle above the panels, at the left edge."""
    width, height = drawn.get_size_inches()
    lines: list[tuple[str, float, str]] = [
        (line, 12, "black") for line in textwrap.wrap(figure.title, int(width / 12 / _LETTER))
    ]
    lines += [(line, 8.5, "#555555") for line in textwrap.wrap(figure.subtitle, int(width / 8.5 / _LETTER))]
    used = 0.06
    for line, size, colour in lines:
        drawn.text(0.01, 1 - used / height, line, fontsize=size, color=colour, ha="left", va="top")
        used += size * 1.35 / 72
    drawn.set_layout_engine("constrained", rect=(0, 0, 1, 1 - (used + 0.04) / height))


def _measure(part: Part) -> tuple[float, float]:
    """Return the inches that the panels take."""
    across = min(part.across, len(part.panels))
    return across * PANEL[0] + 0.9, -(-len(part.panels) // across) * PANEL[1]


def _draw_part(place: FigureBase, part: Part, tips: dict[str, Sequence[str]]) -> None:
    across = min(part.across, len(part.panels))
    rows = -(-len(part.panels) // across)
    if part.title:
        place.suptitle(part.title, fontsize=10, x=0.01, ha="left")
    every = place.subplots(
        rows,
        across,
        squeeze=False,
        sharex="col" if "x" in part.share else False,
        sharey="row" if "y" in part.share else False,
        width_ratios=part.widths,
        height_ratios=part.heights,
    )
    axes = list(every.flat)
    for empty in axes[len(part.panels) :]:
        empty.set_visible(False)
    for one, panel in zip(axes, part.panels, strict=False):
        _draw_panel(one, panel, tips)
    if part.bar:
        _add_bar(place, axes[: len(part.panels)], part.bar)
    for one, panel in zip(axes, part.panels, strict=False):
        for mark in panel.marks:
            if isinstance(mark, Interval):
                mark.draw_beyond(one)
        if panel.bar:
            _add_bar(place, [one], panel.bar)


def _draw_panel(axes: Axes, panel: Panel, tips: dict[str, Sequence[str]]) -> None:
    box = axes.get_window_extent()
    width, height = box.width / DPI, box.height / DPI
    axes.spines[["top", "right"]].set_visible(False)
    if panel.title:
        axes.set_title(_fold(panel.title, width, 9), fontsize=9, loc="left")
    _scale(axes, panel.x, upright=False)
    _scale(axes, panel.y, upright=True)
    for mark in panel.marks:
        titled = mark.draw(axes)
        if titled and titled[1]:
            tips[name := f"points{len(tips)}"] = titled[1]
            titled[0].set_gid(name)
    _finish(axes, panel.x, width, upright=False)
    _finish(axes, panel.y, height, upright=True)
    if panel.bare:
        axes.set_axis_off()
    if panel.entries:
        lines = [_draw_entry(entry) for entry in panel.entries]
        labels = [entry.label for entry in panel.entries]
        axes.legend(lines, labels, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))


def _fold(text: str, inches: float, size: float) -> str:
    """Return a text in lines of so many inches."""
    return "\n".join(textwrap.wrap(text, max(16, int(inches / size / _LETTER))))


def _scale(axes: Axes, axis: Axis, upright: bool) -> None:
    """Set the scale of an axis, before anything is drawn."""
    rescale, name = (axes.set_yscale, "y") if upright else (axes.set_xscale, "x")
    if axis.near:
        rescale("symlog", linthresh=axis.near)
    elif axis.log:
        rescale("log")
    look: dict[str, Any] = {"axis": name}
    axes.grid(False, which="both", **look)
    if axis.grid:
        axes.grid(True, which="major", color=_GRID, linewidth=0.7, **look)


def _finish(axes: Axes, axis: Axis, inches: float, upright: bool) -> None:
    """Set label, limits and ticks of an axis, once its marks are there."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    drawn: DrawnAxis = axes.yaxis if upright else axes.xaxis
    drawn.set_label_text("\n".join(_fold(line, inches, 9.5) for line in axis.label.split("\n")), fontsize=9.5)
    drawn.set_tick_params(which="both", labelsize=8.5)
    if axis.limits:
        (axes.set_ylim if upright else axes.set_xlim)(*axis.limits)
    if axis.ticks is not None:
        drawn.set_ticks(list(axis.ticks), list(axis.ticks.values()))
        drawn.set_ticks([], minor=True)
    elif axis.within:
        drawn.set_ticks([tick for tick in drawn.get_ticklocs() if axis.within[0] <= tick <= axis.within[1]])
    elif axis.log:
        label_log_ticks(drawn)
    elif axis.numbers == "items":
        drawn.set_major_formatter(EngFormatter(sep=" "))
        drawn.set_major_locator(MaxNLocator(max(2, int(inches * 1.4)), steps=[1, 2, 5, 10]))
    elif axis.numbers == "layers":
        drawn.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))


def label_log_ticks(axis: DrawnAxis) -> None:
    """Label the ticks of a logarithmic axis as 0.003. Powers of ten would be typeset as mathematics, which is slow."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    axis.set_major_formatter(Plain(labelOnlyBase=False))
    axis.set_minor_formatter(Plain(labelOnlyBase=False))


def _add_bar(place: FigureBase, axes: Sequence[Axes], bar: Bar) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize

    scale = ScalarMappable((LogNorm if bar.log else Normalize)(*bar.limits), bar.colours)
    extend: Any = "max" if bar.extends else "neither"
    drawn = place.colorbar(scale, ax=list(axes), shrink=0.9, pad=0.015, extend=extend)
    drawn.set_label(_fold(bar.label, 3, 9), fontsize=9)
    if bar.log:
        label_log_ticks(drawn.ax.yaxis)


def _draw_entry(entry: Entry) -> Any:
    from matplotlib.lines import Line2D

    look: dict[str, Any] = {"marker": entry.marker or "none", "markersize": 6, "linewidth": 1.4, "color": entry.colour}
    face = "none" if entry.hollow else entry.colour
    return Line2D([], [], linestyle=DASHES[entry.dash] if entry.dash else "none", markerfacecolor=face, **look)


def _add_legend(drawn: Drawn, entries: Sequence[Entry]) -> None:
    """Add a legend below the panels, where it hides nothing. Names are shown unchanged."""
    # matplotlib leaves out what begins with an underscore
    labels = [f" {entry.label}" if entry.label.startswith("_") else entry.label for entry in entries]
    fit = int(16 * drawn.get_size_inches()[0] / (max(map(len, labels)) + 7))
    columns = max(1, min(4, len(entries), fit))
    lines = [_draw_entry(entry) for entry in entries]
    drawn.legend(lines, labels, loc="outside lower center", ncols=columns, fontsize=8.5)


def _to_svg(drawn: Drawn, tips: dict[str, Sequence[str]], name: str) -> str:
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    text = io.StringIO()
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.sans-serif": _FONTS}):
        FigureCanvasSVG(drawn).print_svg(text, metadata={"Date": None})
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _LINK)
    root = ElementTree.fromstring(text.getvalue())
    for tag in ("metadata", "defs"):  # of the whole figure: a rule of style would be one of the page
        for element in root.findall(f"{{{_SVG}}}{tag}")[: None if tag == "metadata" else 1]:
            root.remove(element)
    # as wide as its place, such as MLflow's descriptions, at most as drawn
    root.set("style", f"stroke-linejoin: round; stroke-linecap: butt; max-width: {root.get('width')}")
    root.set("width", "100%")
    del root.attrib["height"]
    _add_titles(root, tips)
    used = set(re.findall(r"#([\w-]+)", text.getvalue()))
    for element in root.iter():
        if element.get("id") not in used:
            element.attrib.pop("id", None)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_titles(root: ElementTree.Element, tips: dict[str, Sequence[str]]) -> None:
    for group in root.iter(f"{{{_SVG}}}g"):
        titles = tips.get(group.get("id", ""), ())
        points = list(group.iter(f"{{{_SVG}}}use"))
        if len(points) == len(titles):  # matplotlib leaves out what lies outside of the figure
            for point, title in zip(points, titles, strict=True):
                ElementTree.SubElement(point, f"{{{_SVG}}}title").text = title
