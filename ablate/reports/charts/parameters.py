"""The objective against one searched parameter, such as the learning rate: the trials of the search, overlaid with the
results on fresh seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ablate.config.formatting import format_number, format_setting, format_uncertain
from ablate.plots import style
from ablate.reports.charts.chart import (
    Chart,
    Range,
    Trace,
    build_axis,
    build_band,
    build_entry,
    build_error,
    build_layout,
    build_log_axis,
    choose_range,
    choose_symbol,
    escape,
    find_ends,
)
from ablate.reports.figure_data import Panel, Point, is_off
from ablate.reports.findings import objective_sign
from ablate.reports.grid_figure import find_axis
from ablate.reports.labels import LEARNING_RATE, choose_looks, label_metric, label_parameter, name_parameter
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.verdict_summary import find_bounds
from ablate.verdict.failures import FailureShare
from ablate.verdict.intervals import Estimate
from ablate.verdict.records import Compared

_MEAN = {True: "Strong: mean of the fresh seeds at the chosen setting", False: "Mean of the fresh seeds that trained"}
_WIDE = 5  # the factor between the ends of a grid from which on its axis is logarithmic
_ASIDE = 1.035  # a factor by which means at the same place stand apart
_EDGE = 0.07  # of the height: kept free at the bad edge for trials that have no place on the scale


@dataclass(frozen=True)
class Confirmed:
    """The result of an arm on fresh seeds at one value of the parameter."""

    arm: str
    x: float
    estimate: Estimate | None
    failures: FailureShare | None


def list_confirmed(compared: Mapping[str, Compared], panel: Panel) -> Iterator[Confirmed]:
    """Yield the result of each arm on fresh seeds at its chosen settings, at its value of the panel's parameter."""
    for arm, c in compared.items():
        x = c.params.get(panel.path, panel.fixed.get(arm))
        if c.outcomes and isinstance(x, (int, float)) and (x > 0 or not panel.log):
            yield Confirmed(arm, float(x), c.estimate, c.failures)


def chart_grid(record: SweepRecord, compared: Mapping[str, Compared]) -> Chart | None:
    """Return the results on fresh seeds at each point of a grid, against the one number that it varies; None if there
    is no such number, or no seed trained."""
    path, cells = find_axis(record, most_columns=1), record.spec.cells
    seeds = [o.value for c in compared.values() for o in c.outcomes.values() if o.trained and o.value is not None]
    if path is None or not seeds:
        return None
    confirmed = [
        Confirmed(cells[arm].arm, float(str(cells[arm].point[path])), c.estimate, c.failures)
        for arm, c in compared.items()
        if c.outcomes
    ]
    xs = [c.x for c in confirmed]
    log = min(xs) > 0 and max(xs) / min(xs) >= _WIDE
    view = (min(seeds), max(seeds))
    return chart_panel(record, Panel(path, "grid", log, [], view, (min(xs), max(xs))), confirmed)


def chart_panel(record: SweepRecord, panel: Panel, confirmed: list[Confirmed]) -> Chart:
    """Return the objective against one parameter. `confirmed` may contain several values of one arm, which are joined
    by a line."""
    metric, bounds = record.spec.objective.metric, find_bounds(record.spec.objective.metric)
    looks, sign = {**choose_looks(record), **style.choose_looks(record.spec.own_arms)}, objective_sign(record)
    estimates = [c.estimate for c in confirmed if c.estimate]
    low, high = choose_range(
        [*panel.view, *(e.mean for e in estimates)], [e for one in estimates if (e := find_ends(one, bounds))]
    )
    off = [p for p in panel.points if is_off(p.y, (low, high), sign)]
    lost = [c for c in confirmed if c.estimate is None and c.failures]
    width = _EDGE * (high - low)
    shapes = []
    edge = high + width / 2 if sign > 0 else low - width / 2
    if off or lost:
        shapes.append(build_band(min(edge, high, low), max(edge, high, low), "y", "x"))
        low, high = (low, high + width) if sign > 0 else (low - width, high)
        shapes[0] |= {"y0": edge - width / 2, "y1": edge + width / 2}
    traces = [t for arm in record.arms for t in _draw_arm(record, panel, arm, looks, (low, high), edge)]
    traces += _draw_confirmed(confirmed, looks, bounds, edge, named=not panel.points)
    traces += list(_list_entries(panel, confirmed))
    name, extent = label_parameter(panel.path), _find_extent(panel, confirmed)
    grid = () if panel.points else {c.x for c in confirmed}
    axis = build_log_axis(name, *extent, values=[*grid]) if panel.log else build_axis(name, nticks=8, **_widen(extent))
    layout = build_layout(
        400, xaxis=axis, yaxis=build_axis(label_metric(metric, record.spec), range=[low, high], nticks=7), shapes=shapes
    )
    caption = (
        ("Light: each trial of the search, one seed each, so the best value is optimistic. " if panel.points else "")
        + (f"{_MEAN[bool(panel.points)]}, with its 95 % interval." if estimates else "")
        + (f" Grey band: {'diverged, or worse than the scale' if off else 'no seed trained'}." if off or lost else "")
    )
    title = f"{record.spec.objective.title} against {name_parameter(panel.path)}"
    return Chart(f"parameter-{panel.file}", title, caption, traces, layout, f"{panel.file}.png")


def _find_extent(panel: Panel, confirmed: list[Confirmed]) -> Range:
    """Return the range of the tried values."""
    xs = [*(p.x for p in panel.points), *(c.x for c in confirmed)]
    return min(xs), max(xs)


def _widen(extent: Range) -> dict[str, list[float]]:
    margin = 0.04 * (extent[1] - extent[0]) or 0.05 * abs(extent[1]) or 0.5
    return {"range": [extent[0] - margin, extent[1] + margin]}


def _draw_arm(
    record: SweepRecord, panel: Panel, arm: str, looks: style.Looks, view: Range, edge: float
) -> Iterator[Trace]:
    """Yield the trials of an arm, the line through them, and its best trial if the arm does not have this parameter."""
    colour, symbol, sign = looks[arm][0], choose_symbol(looks, arm), objective_sign(record)
    points = [p for p in panel.points if p.arm == arm]
    for line, dash in ((panel.lines.get(arm), "solid"), (panel.envelopes.get(arm), "dash")):
        if line:
            xs, ys = zip(*line, strict=True)
            yield {
                "type": "scatter", "mode": "lines", "x": list(xs), "y": list(ys), "hoverinfo": "skip",
                "line": {"color": colour, "width": 1.2, "dash": dash}, "opacity": 0.45, "legendgroup": arm,
                "showlegend": False,
            }  # fmt: skip
    if points:
        yield {
            "type": "scatter", "mode": "markers", "name": escape(arm), "legendgroup": arm,
            "x": [p.x for p in points],
            "y": [edge if p.y is None or is_off(p.y, view, sign) else p.y for p in points],
            "text": [_describe(p) for p in points], "hovertemplate": "%{text}<extra></extra>",
            "marker": {
                "color": [style.GREY if p.status == "pruned" else colour for p in points],
                "symbol": [_mark(p, symbol) for p in points],
                "size": 8, "opacity": 0.6, "line": {"width": 1.2, "color": colour},
            },
        }  # fmt: skip
    if arm in panel.references:
        value, (low, high) = panel.references[arm], panel.extent
        yield {
            "type": "scatter", "mode": "lines", "name": f"{escape(arm)}, best of its search", "legendgroup": arm,
            "x": [low, high], "y": [value, value], "line": {"color": colour, "width": 1.2, "dash": "dot"},
            "text": [f"{escape(arm)}: {format_number(value)}"] * 2, "hovertemplate": "%{text}<extra></extra>",
        }  # fmt: skip


def _mark(point: Point, symbol: str) -> str:
    if point.status == "pruned":
        return "x-thin-open"
    return f"{symbol}-open" if point.status == "diverged" else symbol


def _describe(p: Point) -> str:
    value = {"diverged": "diverged", "pruned": f"pruned at {format_number(p.y)}"}.get(p.status, format_number(p.y))
    rate = f", lr {format_setting(p.lr)}" if p.lr is not None and p.lr != p.x else ""
    best = "<br>the best of its search (optimistic)" if p.best else ""
    return f"{escape(p.arm)}, trial {p.number}: {value}<br>at {format_setting(p.x)}{rate}{best}"


def _draw_confirmed(
    confirmed: list[Confirmed], looks: style.Looks, bounds: Range, edge: float, named: bool
) -> Iterator[Trace]:
    """Yield the means on fresh seeds with their intervals, joined by a line if an arm has several; at the bad edge if
    no seed trained. `named`: the legend has no other entries for the arms."""
    arms = list(dict.fromkeys(c.arm for c in confirmed))
    for arm in arms:
        own = sorted((c for c in confirmed if c.arm == arm), key=lambda c: c.x)
        aside = _ASIDE ** (arms.index(arm) - (len(arms) - 1) / 2)
        colour, means = looks[arm][0], [c.estimate.mean if c.estimate else edge for c in own]
        ends = [find_ends(c.estimate, bounds) if c.estimate else None for c in own]
        yield {
            "type": "scatter", "mode": "lines+markers" if len(own) > 1 else "markers", "legendgroup": arm,
            "showlegend": named, "name": escape(arm), "y": means,
            "x": [c.x * aside if _is_shared(c, confirmed) else c.x for c in own],
            "error_y": build_error(ends, means, colour), "line": {"color": colour, "width": 2},
            "marker": {
                "color": [colour if c.estimate else "#fff" for c in own], "size": 12,
                "symbol": choose_symbol(looks, arm), "line": {"color": colour, "width": 2},
            },
            "text": [_describe_confirmed(c, bounds) for c in own], "hovertemplate": "%{text}<extra></extra>",
        }  # fmt: skip


def _is_shared(c: Confirmed, confirmed: list[Confirmed]) -> bool:
    """Return whether another arm has a mean at the same position, which would hide this one."""
    return any(other.arm != c.arm and math.isclose(other.x, c.x, rel_tol=0.03) for other in confirmed)


def _describe_confirmed(c: Confirmed, bounds: Range) -> str:
    e = c.estimate
    mean = format_uncertain(e.mean, e.half_width, bounds=bounds) + f" (n = {e.n})" if e else "no seed trained"
    failed = f"<br>failed: {c.failures.describe()}" if c.failures and c.failures.failed else ""
    return f"<b>{escape(c.arm)}, fresh seeds: {mean}</b><br>at {format_setting(c.x)}{failed}"


def _list_entries(panel: Panel, confirmed: list[Confirmed]) -> Iterator[Trace]:
    statuses = {p.status for p in panel.points}
    if any(c.estimate for c in confirmed):
        yield build_entry("fresh seeds: mean, 95 % interval", size=12)
    if any(c.estimate is None and c.failures for c in confirmed):
        yield build_entry("fresh seeds: none trained", size=12, symbol="circle-open", line={"width": 2})
    if "diverged" in statuses:
        yield build_entry("diverged", symbol="circle-open")
    if "pruned" in statuses:
        yield build_entry("pruned, last value", symbol="x-thin-open", line={"width": 1.2, "color": style.GREY})


def is_rate(panel: Panel) -> bool:
    """Return whether a panel shows the learning rate."""
    return panel.path == LEARNING_RATE
