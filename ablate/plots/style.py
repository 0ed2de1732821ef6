"""Colours that colour-blind readers can distinguish, a marker per arm, simple axes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Looks: TypeAlias = dict[str, tuple[str, str]]  # arm -> (colour, marker)
Entry: TypeAlias = "tuple[Line2D, str]"  # of a legend

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", ">", "p", "h")  # a prime number of them: no pair repeats for long
GREY = "#7f7f7f"
SIZE = (7.0, 4.5)  # inches
DPI = 150
LINE = 96  # letters of a subtitle that fit above the axes


def escape_math(name: str) -> str:
    """Return a name escaped so that a figure does not show it as mathematics."""
    return re.sub(r"(?<!\\)\$", r"\\$", name)


def label_log_ticks(axis: Axis) -> None:
    """Label the ticks of a logarithmic axis as 0.003. Powers of ten would be typeset as mathematics, which is slow."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    axis.set_major_formatter(Plain(labelOnlyBase=False))
    axis.set_minor_formatter(Plain(labelOnlyBase=False))


def choose_looks(arms: Iterable[str]) -> Looks:
    """Return colour and marker of each arm, by its index in the sweep: the same in every figure."""
    return {arm: (PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]) for i, arm in enumerate(arms)}


def create_canvas(title: str, subtitle: str) -> tuple[Figure, Axes]:
    """Return an empty figure and its axes; no global state of pyplot is touched."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    lines = textwrap.wrap(subtitle, LINE)
    axes.set_title(title, fontsize=12, loc="left", pad=9 + 11 * len(lines))
    axes.annotate(
        "\n".join(lines),
        (0, 1),
        (0, 5),
        xycoords="axes fraction",
        textcoords="offset points",
        va="bottom",
        fontsize=8.5,
        color="#555555",
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    return figure, axes


def create_status_entries(statuses: set[str]) -> list[Entry]:
    """Return the legend entries of pruned and diverged trials, if `statuses` contains them."""
    entries = []
    if "diverged" in statuses:
        entries.append(create_entry((GREY, "o"), "diverged", linestyle="none", markerfacecolor="none"))
    if "pruned" in statuses:
        entries.append(create_entry((GREY, "x"), "pruned, last value", linestyle="none"))
    return entries


def create_entry(look: tuple[str, str], label: str, **options: object) -> Entry:
    """Return a line of the legend with a colour and a marker; `options` are those of Line2D."""
    from matplotlib.lines import Line2D

    colour, marker = look
    settings: dict[str, object] = {"color": colour, "marker": marker, "markersize": 6, "linewidth": 1.2, **options}
    return Line2D([], [], **settings), label  # type: ignore[arg-type]


def add_legend(figure: Figure, entries: list[Entry]) -> None:
    """Add a legend below the axes, where it hides nothing. Names are shown unchanged."""
    handles, labels = [handle for handle, _ in entries], [escape_math(label) for _, label in entries]
    labels = [f" {label}" if label.startswith("_") else label for label in labels]  # which matplotlib would leave out
    columns = max(1, min(4, len(entries), int(112 / (max(map(len, labels)) + 7))))  # some 110 letters fit side by side
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5)
