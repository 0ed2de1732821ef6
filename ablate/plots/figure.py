"""A figure as plain data: parts of panels of marks. `ablate.plots.drawing` draws it, as SVG and as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ablate.plots.marks import Mark, Range
from ablate.plots.style import MAP, SIZE


@dataclass(frozen=True)
class Axis:
    """One axis of a panel."""

    label: str = ""
    log: bool = False
    near: float = 0
    """If above 0: logarithmic on both sides of zero, and linear up to this value."""
    limits: Range | None = None
    """The two ends; None: as the marks need them."""
    ticks: Mapping[Any, str] | None = None
    """Place -> label; None: where matplotlib puts them."""
    within: Range | None = None
    """Where ticks are, if not on the whole axis."""
    numbers: Literal["", "layers", "items"] = ""
    """Kind of the numbers: whole numbers from 1, or amounts such as 20 k."""
    grid: bool = True


@dataclass(frozen=True)
class Bar:
    """A scale of colours."""

    label: str
    limits: Range
    log: bool = False
    colours: str = MAP
    extends: bool = False
    """Whether larger values have the last colour too."""


@dataclass(frozen=True)
class Entry:
    """A line of a legend."""

    label: str
    colour: str
    marker: str = ""
    dash: str = "-"
    """The style of a line; "": no line."""
    hollow: bool = False


@dataclass(frozen=True)
class Panel:
    """A pair of axes with marks."""

    marks: Sequence[Mark]
    x: Axis = Axis()
    y: Axis = Axis()
    title: str = ""
    bar: Bar | None = None
    """The scale of this panel alone."""
    entries: Sequence[Entry] = ()
    """The lines of a legend beside this panel."""
    bare: bool = False
    """Whether it has no axes."""


@dataclass(frozen=True)
class Part:
    """Panels in a grid."""

    panels: Sequence[Panel]
    """Row by row."""
    across: int = 4
    """The number of panels side by side."""
    title: str = ""
    bar: Bar | None = None
    """The scale of all its panels."""
    share: str = ""
    """x: panels below one another have one x axis; y: panels side by side have one y axis; xy."""
    widths: Sequence[float] | None = None
    heights: Sequence[float] | None = None
    size: tuple[float, float] | None = None
    """Inches; None: as its panels need it."""


@dataclass(frozen=True)
class Figure:
    """A figure."""

    name: str
    """The name of its file, without a suffix."""
    title: str
    parts: Sequence[Part]
    """Below one another."""
    subtitle: str = ""
    """The meaning of the marks."""
    caption: str = ""
    """The content, in words beside the figure."""
    entries: Sequence[Entry] = ()
    """The lines of the legend below the panels."""
    size: tuple[float, float] | None = None
    """Inches; None: as its parts need it."""

    @property
    def panels(self) -> list[Panel]:
        """All panels."""
        return [panel for part in self.parts for panel in part.panels]


def plot(
    name: str, title: str, panel: Panel, *, subtitle: str = "", caption: str = "", entries: Sequence[Entry] = ()
) -> Figure:
    """Return a figure of one panel."""
    return Figure(name, title, [Part([panel])], subtitle, caption, entries, SIZE)


def list_entries(looks: Mapping[str, tuple[str, str]], dash: str = "-") -> list[Entry]:
    """Return an entry for each name, with its colour and marker."""
    return [Entry(name, colour, marker, dash) for name, (colour, marker) in looks.items()]
