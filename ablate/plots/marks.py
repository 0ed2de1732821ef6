"""The marks of a figure's panels: plain data, each of which knows how to draw itself into matplotlib's axes.

A mark that has titles returns the artist with them: an SVG shows the title under the pointer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ablate.plots.style import MAP, SHADE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

Titled: TypeAlias = "tuple[Line2D, Sequence[str]] | None"
Range: TypeAlias = tuple[float, float]

DASHES: dict[str, Any] = {"-": "-", "--": (0, (4, 3)), ":": (0, (1, 1.5))}


@dataclass(frozen=True)
class Points:
    """Single values."""

    xs: Sequence[float]
    ys: Sequence[float]
    colour: str
    marker: str = "o"
    size: float = 6
    hollow: bool = False
    alpha: float = 1
    titles: Sequence[str] = ()
    """One for each point."""
    edge: str = ""
    """The colour around a point; "": its own."""

    def draw(self, axes: Axes) -> Titled:
        """Draw them."""
        edge = self.edge or self.colour
        face = "none" if self.hollow else self.colour
        look: dict[str, Any] = {"markerfacecolor": face, "markeredgecolor": edge, "markersize": self.size}
        width = 1.2 if self.hollow or self.edge == "black" else 0.5
        (line,) = axes.plot(
            self.xs, self.ys, self.marker, linestyle="none", alpha=self.alpha, markeredgewidth=width, zorder=3, **look
        )
        return line, self.titles


@dataclass(frozen=True)
class Line:
    """Values joined by a line."""

    xs: Sequence[float]
    ys: Sequence[float]
    colour: str
    width: float = 1.4
    dash: str = "-"
    """"-", "--" or ":"."""
    alpha: float = 1
    marker: str = ""
    size: float = 4.5
    titles: Sequence[str] = ()
    """One for each value, if there are markers."""

    def draw(self, axes: Axes) -> Titled:
        """Draw it."""
        (line,) = axes.plot(
            self.xs,
            self.ys,
            color=self.colour,
            linewidth=self.width,
            linestyle=DASHES[self.dash],
            alpha=self.alpha,
            marker=self.marker or "none",
            markersize=self.size,
            zorder=2,
        )
        return line, self.titles if self.marker else ()


@dataclass(frozen=True)
class Interval:
    """A mean with its interval, along the x axis or the y axis; an arrow at the edge where it ends beyond the axis."""

    x: float
    y: float
    ends: Range | None
    colour: str
    marker: str = "o"
    upright: bool = False
    hollow: bool = False
    title: str = ""
    size: float = 6

    def draw(self, axes: Axes) -> Titled:
        """Draw it."""
        at = self.y if self.upright else self.x
        reach = None if self.ends is None else [[at - self.ends[0]], [self.ends[1] - at]]
        bars: dict[str, Any] = {"yerr" if self.upright else "xerr": reach}
        lines = axes.errorbar(
            self.x,
            self.y,
            fmt=self.marker,
            color=self.colour,
            markersize=self.size,
            markerfacecolor="white" if self.hollow else self.colour,
            capsize=3,
            elinewidth=1.2,
            zorder=3,
            **bars,
        )
        return lines.lines[0], [self.title] if self.title else ()

    def draw_beyond(self, axes: Axes) -> None:
        """Draw arrows where it ends beyond the axis, whose limits are final."""
        from matplotlib.transforms import blended_transform_factory

        low, high = axes.get_ylim() if self.upright else axes.get_xlim()
        first, last = self.ends or ((self.y, self.y) if self.upright else (self.x, self.x))
        mixed = (axes.transData, axes.transAxes) if self.upright else (axes.transAxes, axes.transData)
        for gone, share, marker in ((first < low, 0.012, "v<"), (last > high, 0.988, "^>")):
            if gone:
                place = (self.x, share) if self.upright else (share, self.y)
                look: dict[str, Any] = {"color": self.colour, "markersize": 5}
                look["transform"] = blended_transform_factory(*mixed)
                axes.plot(*place, marker[0 if self.upright else 1], zorder=4, **look)


@dataclass(frozen=True)
class Band:
    """A shaded area between two lines."""

    xs: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    colour: str

    def draw(self, axes: Axes) -> Titled:
        """Draw it."""
        axes.fill_between(self.xs, self.lows, self.highs, color=self.colour, alpha=0.18, linewidth=0)
        return None


@dataclass(frozen=True)
class Span:
    """A shaded range of one axis, over the whole of the other; a line where both ends are the same."""

    low: float
    high: float
    upright: bool = True
    """Whether it is a range of the x axis."""
    colour: str = SHADE
    dash: str = "-"

    def draw(self, axes: Axes) -> Titled:
        """Draw it."""
        if self.low < self.high:
            shade = axes.axvspan if self.upright else axes.axhspan
            shade(self.low, self.high, color=self.colour, linewidth=0, zorder=0.5)
        else:
            rule = axes.axvline if self.upright else axes.axhline
            rule(self.low, color=self.colour, linewidth=1, linestyle=DASHES[self.dash], zorder=1)
        return None


@dataclass(frozen=True)
class Text:
    """A few words at a place."""

    x: float
    y: float
    text: str
    colour: str = "#333333"
    align: str = "left"
    shift: tuple[float, float] = (0, 0)
    """Points to the right, and up."""
    of_axes: str = ""
    """The coordinates that are shares of an axis: "x", "y" or "xy"; those are written over what is there."""

    def draw(self, axes: Axes) -> Titled:
        """Write them."""
        frame = tuple("axes fraction" if axis in self.of_axes else "data" for axis in ("x", "y"))
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5} if self.of_axes else None
        look: dict[str, Any] = {
            "textcoords": "offset points",
            "ha": self.align,
            "va": "center",
            "fontsize": 8,
            "xycoords": frame,
        }
        words = axes.annotate(self.text, (self.x, self.y), self.shift, color=self.colour, bbox=box, zorder=4, **look)
        words.set_in_layout(False)
        return None


@dataclass(frozen=True)
class Bars:
    """Bars from zero."""

    xs: Sequence[float]
    heights: Sequence[float]
    width: float
    colour: str

    def draw(self, axes: Axes) -> Titled:
        """Draw them."""
        axes.bar(self.xs, self.heights, self.width, color=self.colour)
        return None


@dataclass(frozen=True)
class Cells:
    """A matrix, or the pixels of an image, in colours; NaN is blank."""

    values: Any
    """[row, column], or [row, column, colour]."""
    limits: Range = (0, 1)
    """The values of the first and the last colour."""
    colours: str = MAP
    log: bool = False
    extent: tuple[float, float, float, float] | None = None
    """left, right, bottom, top of a matrix whose first row is at the bottom; None: the first is at the top, and the
    axes have no ticks."""
    edges: Sequence[float] | None = None
    """Edges of the columns on the x axis, if they differ in width."""
    fills: bool = False
    """Whether the cells are stretched to the panel rather than square."""

    def draw(self, axes: Axes) -> Titled:
        """Draw them."""
        from matplotlib.colors import LogNorm, Normalize

        scale: dict[str, Any] = {"norm": (LogNorm if self.log else Normalize)(*self.limits), "cmap": self.colours}
        if self.edges is not None:
            axes.pcolormesh(self.edges, np.arange(len(self.values) + 1) + 0.5, self.values, **scale)
            return None
        place: dict[str, Any] = {"extent": self.extent, "origin": "lower"} if self.extent else {}
        scale["aspect"] = "auto" if self.extent or self.fills else "equal"
        axes.imshow(self.values, interpolation="nearest", **scale, **place)
        if not self.extent and not self.fills:
            axes.set_xticks([])
            axes.set_yticks([])
        return None


Mark: TypeAlias = Points | Line | Interval | Band | Span | Text | Bars | Cells
