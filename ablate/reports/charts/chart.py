"""Code that all interactive figures share: colours, axes, and the range of an axis."""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ablate.config.formatting import clip
from ablate.plots.style import GREY, Looks
from ablate.verdict.intervals import Estimate

Trace: TypeAlias = dict[str, Any]
Range: TypeAlias = tuple[float, float]

_SYMBOLS = {  # matplotlib's markers -> Plotly's
    "o": "circle", "s": "square", "D": "diamond", "^": "triangle-up", "v": "triangle-down", "P": "cross", "X": "x",
    "<": "triangle-left", ">": "triangle-right", "p": "pentagon", "h": "hexagon",
}  # fmt: skip
_ROOM = 1.5
"""How far an interval may extend an axis beyond the values: in multiples of the values' range, and of the intervals'
median width."""
_PAD = 0.06


@dataclass(frozen=True)
class Chart:
    """An interactive figure."""

    name: str
    """Unique on a page."""
    title: str
    caption: str
    traces: list[Trace]
    layout: dict[str, Any]
    static: str = ""
    """Name of the equivalent PNG, for a browser that runs no scripts; empty: there is none."""

    @property
    def height(self) -> int:
        """In pixels."""
        return int(self.layout["height"])

    def to_plain(self) -> dict[str, Any]:
        """Return the plain values that Plotly draws."""
        return {"data": self.traces, "layout": self.layout}


def escape(text: str) -> str:
    """Return text that Plotly shows unchanged, with HTML tags escaped."""
    return html.escape(text, quote=False)


def choose_symbol(looks: Looks, arm: str) -> str:
    """Return the marker of an arm."""
    return _SYMBOLS[looks[arm][1]]


def build_layout(height: int, **more: Any) -> dict[str, Any]:
    """Return the layout of a figure: its height, a white background, no frame, and the settings of `more`."""
    return {
        "height": height,
        "autosize": True,
        "paper_bgcolor": "#fff",
        "plot_bgcolor": "#fff",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1a1a1a"},
        "margin": {"l": 64, "r": 16, "t": 26, "b": 56},
        "hovermode": "closest",
        "hoverlabel": {"align": "left"},
        "legend": {"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0},
        **more,
    }


def build_axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with faint lines."""
    return {
        "title": {"text": escape(title), "standoff": 8},
        "gridcolor": "#e6e6e6",
        "zeroline": False,
        "linecolor": "#888",
        "showline": True,
        "ticks": "outside",
        "tickcolor": "#bbb",
        "automargin": True,
        **more,
    }


def build_log_axis(title: str, low: float, high: float, values: Sequence[float] = (), **more: Any) -> dict[str, Any]:
    """Return a logarithmic axis from `low` to `high` with plain numbers at its ticks, which are at `values` if there
    are any."""
    factor = max(high / low, 1.5) ** 0.04
    ends = [math.log10(low / factor), math.log10(high * factor)]
    steps = (1, 2, 5) if high / low < 300 else (1, 3) if high / low < 1e4 else (1,)
    first, last = math.floor(ends[0]), math.ceil(ends[1])
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    shown = sorted(values) or [tick for tick in ticks if ends[0] <= math.log10(tick) <= ends[1]]
    return build_axis(title, type="log", range=ends, tickvals=shown, ticktext=[f"{tick:g}" for tick in shown], **more)


def choose_range(values: Iterable[float], intervals: Iterable[Range] = (), *also: float) -> Range:
    """Return the range of an axis that shows all `values` and `also`, and the `intervals` up to one and a half times
    the values' range, or the median width of the intervals, beyond them: one wide interval must not compress all
    others."""
    pairs = list(intervals)
    shown, ends = [*values, *also], [end for pair in pairs for end in pair]
    if not shown:
        shown = ends or [0.0, 1.0]
    low, high = min(shown), max(shown)
    span = (high - low) or (max(ends) - min(ends) if ends else 0.0) or 0.02 * abs(high) or 0.02
    room = _ROOM * max(span, statistics.median([right - left for left, right in pairs] or [0.0]))
    left, right = low - room, high + room
    for end in ends:
        low, high = min(low, max(end, left)), max(high, min(end, right))
    pad = _PAD * ((high - low) or span)
    return low - pad, high + pad


def find_ends(estimate: Estimate, bounds: Range) -> Range | None:
    """Return the interval of a mean clipped to possible values; None if it has none. It always contains the mean."""
    if estimate.interval is None:
        return None
    low, high = clip(*estimate.interval, bounds)
    return min(low, estimate.mean), max(high, estimate.mean)


def build_error(ends: Sequence[Range | None], means: Sequence[float], colour: str, width: int = 5) -> dict[str, Any]:
    """Return the error bars of `means`, which may be asymmetric."""
    pairs = [end or (mean, mean) for end, mean in zip(ends, means, strict=True)]
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - mean for (_, high), mean in zip(pairs, means, strict=True)],
        "arrayminus": [mean - low for (low, _), mean in zip(pairs, means, strict=True)],
        "color": colour,
        "thickness": 1.6,
        "width": width,
    }


def build_band(low: float, high: float, axis: str, other: str, colour: str = "#f2f2f2") -> dict[str, Any]:
    """Return a shaded band over the whole of the `other` axis, from `low` to `high` of `axis` (x, x2, y ...)."""
    along, across = axis[0], other[0]
    return {
        "type": "rect", f"{along}ref": axis, f"{across}ref": f"{other} domain", f"{along}0": low, f"{along}1": high,
        f"{across}0": 0, f"{across}1": 1, "fillcolor": colour, "line": {"width": 0}, "layer": "below",
    }  # fmt: skip


def fade(colour: str, opacity: float) -> str:
    """Return '#0072B2' as 'rgba(0, 114, 178, 0.2)'."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def build_entry(name: str, colour: str = GREY, **marker: Any) -> Trace:
    """Return a legend entry for marks of all arms, which draws nothing."""
    return {
        "type": "scatter", "x": [None], "y": [None], "mode": "markers", "name": name, "hoverinfo": "skip",
        "marker": {"color": colour, "size": 8, **marker},
    }  # fmt: skip


def list_values(outcomes: Mapping[int, Any]) -> list[tuple[int, float]]:
    """Return (seed, value) of the seeds that trained."""
    return [(seed, o.value) for seed, o in outcomes.items() if o.trained and o.value is not None]
