"""All arms in one figure: the objective on fresh seeds, the difference to the baseline, and the share of failed
seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.config.formatting import format_number, format_uncertain
from ablate.reports.charts.chart import (
    Chart,
    Range,
    Trace,
    build_axis,
    build_band,
    build_error,
    build_layout,
    choose_range,
    choose_symbol,
    escape,
    find_ends,
    list_values,
)
from ablate.reports.labels import choose_looks, label_metric
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.verdict_summary import find_bounds, find_difference_bounds, name_verdict
from ablate.verdict.intervals import Estimate
from ablate.verdict.records import Compared

_ASIDE = 0.24  # of a row: how far seeds, and crossed runs, stand below the mean
_GAP = 0.035  # of the width, between two panels
_LABEL = 28  # letters of a verdict that fit beside the figure
_ROW, _FRAME = 46, 98  # pixels: of an arm, and of the axes


def chart_arms(record: SweepRecord, compared: Mapping[str, Compared]) -> Chart | None:
    """Return the figure of all arms; None if no seed of any arm has ended. Empty panels are omitted."""
    panels = [panel for panel in (_Values, _Differences, _Failures) if panel.has_data(compared)]
    if not panels:
        return None
    weights = [panel.weight for panel in panels]
    unit = (1 - _GAP * (len(panels) - 1)) / sum(weights)
    names = [_name_row(record, arm, compared) for arm in compared]
    layout = build_layout(
        _FRAME + _ROW * len(compared),
        showlegend=False,
        shapes=[],
        annotations=[],
        yaxis={
            "tickvals": list(range(len(names))),
            "ticktext": names,
            "range": [len(names) - 0.5, -0.5],
            "automargin": True,
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
    )
    traces: list[Trace] = []
    start = 0.0
    for number, panel in enumerate(panels, 1):
        drawn = panel(record, compared, "x" if number == 1 else f"x{number}")
        traces += drawn.traces
        layout["shapes"] += drawn.shapes
        layout["annotations"] += drawn.notes
        end = start + unit * panel.weight
        layout[f"xaxis{'' if number == 1 else number}"] = {**drawn.build_axis(), "domain": [start, min(end, 1.0)]}
        start = end + _GAP
    caption = " ".join(panel.caption(record, compared) for panel in panels)
    static = "verdict.png" if _Differences in panels else "confirmed.png"
    return Chart("arms", "All arms on fresh seeds", caption, traces, layout, static)


def _name_row(record: SweepRecord, arm: str, compared: Mapping[str, Compared]) -> str:
    verdict = name_verdict(record, arm, compared)
    if len(verdict) > _LABEL:
        verdict = verdict.replace(", ", ",<br>").replace(": ", ":<br>")
    return f'<b>{escape(arm)}</b><br><span style="color:#555;font-size:11px">{verdict}</span>'


class _Panel:
    """One panel of the figure, with a row for each arm."""

    weight = 1.0

    def __init__(self, record: SweepRecord, compared: Mapping[str, Compared], axis: str) -> None:
        self.record, self.compared, self.axis = record, compared, axis
        self.looks = choose_looks(record)
        self.metric, self.baseline = record.spec.objective.metric, record.spec.compared_with
        self.traces: list[Trace] = []
        self.shapes: list[dict[str, Any]] = []
        self.notes: list[dict[str, Any]] = []
        self.range: Range = (0.0, 1.0)
        self.draw()

    def draw(self) -> None:
        raise NotImplementedError

    def add_mean(self, arm: str, row: float, mean: float, ends: Range | None, text: str, hollow: bool = False) -> None:
        """Draw a mean with its interval, and an arrow at an end beyond the axis."""
        colour, symbol = self.looks[arm][0], choose_symbol(self.looks, arm)
        marker: dict[str, Any] = {"color": "#fff" if hollow else colour, "size": 9 if hollow else 11, "symbol": symbol}
        marker["line"] = {"color": colour, "width": 1.5}
        self._add(row, [mean], marker, [text], error_x=build_error([ends], [mean], colour) if ends else None)
        low, high = self.range
        for end, name, edge in ((ends or (mean, mean))[0], "left", low), ((ends or (mean, mean))[1], "right", high):
            if end < low or end > high:
                arrow = {"color": colour, "size": 9, "symbol": f"triangle-{name}"}
                inset = 0.012 * (high - low) * (1 if name == "left" else -1)
                self._add(row, [edge + inset], arrow, [f"{text}<br>extends to {format_number(end)}"])

    def _add(self, row: float, xs: list[float], marker: dict[str, Any], texts: list[str], **more: Any) -> None:
        self.traces.append(
            {
                "type": "scatter", "mode": "markers", "x": xs, "y": [row] * len(xs), "xaxis": self.axis, "yaxis": "y",
                "marker": marker, "text": texts, "hovertemplate": "%{text}<extra></extra>", "cliponaxis": True,
                **{key: value for key, value in more.items() if value is not None},
            }
        )  # fmt: skip

    def note(self, row: float, text: str, x: float | None = None, colour: str = "#555", **more: Any) -> None:
        """Write a short text into a row: at `x`, or at the left edge of the panel."""
        place = {"x": x, "xref": self.axis} if x is not None else {"x": 0.02, "xref": f"{self.axis} domain"}
        self.notes.append(
            {
                "y": row, "yref": "y", **place, "text": text, "showarrow": False, "xanchor": "left",
                "font": {"size": 11, "color": colour}, **more,
            }
        )  # fmt: skip

    def draw_line(self, x: float, dash: str, colour: str) -> None:
        """Draw a vertical line."""
        line = {"color": colour, "width": 1, "dash": dash}
        self.shapes.append(
            {
                "type": "line", "xref": self.axis, "yref": "y domain", "x0": x, "x1": x, "y0": 0, "y1": 1,
                "line": line, "layer": "below",
            }
        )  # fmt: skip


class _Values(_Panel):
    weight = 1.15

    @staticmethod
    def has_data(compared: Mapping[str, Compared]) -> bool:
        """Return whether any seed of any arm trained."""
        return any(c.estimate for c in compared.values())

    @staticmethod
    def caption(record: SweepRecord, compared: Mapping[str, Compared]) -> str:
        """Return what the panel shows."""
        return (
            f"{record.spec.objective.title}: small marks are seeds that trained, large marks their mean with its 95 % "
            "interval; an arrow: the interval extends beyond the axis."
        )

    def draw(self) -> None:
        bounds = find_bounds(self.metric)
        ends = {a: find_ends(c.estimate, bounds) for a, c in self.compared.items() if c.estimate}
        seeds = {arm: list_values(c.outcomes) for arm, c in self.compared.items()}
        self.range = choose_range([v for own in seeds.values() for _, v in own], [e for e in ends.values() if e])
        for row, (arm, c) in enumerate(self.compared.items()):
            colour = self.looks[arm][0]
            marker = {"color": colour, "size": 7, "opacity": 0.45}
            if seeds[arm]:
                texts = [f"{escape(arm)}, seed {seed}: {format_number(value)}" for seed, value in seeds[arm]]
                self._add(row + _ASIDE, [value for _, value in seeds[arm]], marker, texts)
            if c.estimate:
                self.add_mean(arm, row, c.estimate.mean, ends[arm], _describe(arm, c.estimate, bounds))
                if c.kind == "baseline" and len(self.compared) > 1:
                    self.draw_line(c.estimate.mean, "dash", colour)
            else:
                self.note(row, "no seed trained" if c.outcomes else "no seed has ended")
        self._draw_published()

    def _draw_published(self) -> None:
        rows, (low, high) = list(self.compared), self.range
        for published in self.record.spec.published:
            for arm, value in published.values.items() if published.metric == self.metric else ():
                if arm not in rows:
                    continue
                row, text = rows.index(arm) - _ASIDE, f"{escape(arm)}, published: {format_number(value)}"
                if low <= value <= high:
                    marker = {"color": "rgba(0,0,0,0)", "size": 9, "symbol": "diamond", "line": {"width": 1.5}}
                    self._add(row, [value], marker, [f"{text}<br>{escape(published.source)}"])
                else:
                    side: dict[str, Any] = (
                        {"x": 0.99, "xanchor": "right"} if value > high else {"x": 0.01, "xanchor": "left"}
                    )
                    arrow = f"published {format_number(value)} →" if value > high else f"← published {value:.4g}"
                    self.note(row, arrow, xref=f"{self.axis} domain", **side)

    def build_axis(self) -> dict[str, Any]:
        return build_axis(label_metric(self.metric, self.record.spec), range=list(self.range), nticks=6)


class _Differences(_Panel):
    weight = 1.0

    @staticmethod
    def has_data(compared: Mapping[str, Compared]) -> bool:
        """Return whether any arm has a difference to the baseline."""
        return any(c.difference for c in compared.values())

    @staticmethod
    def caption(record: SweepRecord, compared: Mapping[str, Compared]) -> str:
        """Return what the panel shows."""
        family, effect = next(iter(compared.values())).family, record.spec.confirm.effect
        better = "left" if record.spec.objective.direction == "minimize" else "right"
        sharing = "one comparison" if family == 1 else f"{family} comparisons together"
        text = (
            f"Difference to {record.spec.compared_with}, {better} is better: mean over the seeds on which both "
            f"trained, with an interval; the intervals have a joint error of 5 % over {sharing} and all looks."
        )
        if any(c.crossed and c.crossed.difference for c in compared.values()):
            text += " Hollow: the worse arm, trained at the other's settings; the verdict requires this comparison too."
        return text + (f" Grey: differences smaller than confirm.effect ({effect:.2g})." if effect else "")

    def draw(self) -> None:
        bounds, effect = find_difference_bounds(self.metric), self.record.spec.confirm.effect
        own = {arm: c.difference for arm, c in self.compared.items() if c.difference}
        there = {a: d for a, c in self.compared.items() if c.crossed and (d := c.crossed.difference)}
        known = [*own.values(), *there.values()]
        self.range = choose_range([d.mean for d in known], [e for d in known if (e := find_ends(d, bounds))], 0.0)
        if effect:
            self.shapes.append(build_band(-effect, effect, self.axis, "y"))
        self.draw_line(0.0, "solid", "#1a1a1a")
        for row, (arm, c) in enumerate(self.compared.items()):
            if arm in own:
                text = f"{_describe(arm, own[arm], bounds, True)}<br>to {escape(self.baseline)}"
                self.add_mean(arm, row, own[arm].mean, find_ends(own[arm], bounds), text)
            elif c.kind == "baseline":
                right = sum(self.range) < 0  # 0 is near the right edge
                self.note(row, "baseline", x=0.0, xshift=-6 if right else 6, xanchor="right" if right else "left")
            elif c.kind != "could not be trained":
                self.note(row, "no seed on which both trained")
            if arm in there:
                text = f"{_describe(arm, there[arm], bounds, True)}<br>"
                text += f"{escape(c.crossed_loser or '')} at the other's settings"
                self.add_mean(arm, row + _ASIDE, there[arm].mean, find_ends(there[arm], bounds), text, hollow=True)

    def build_axis(self) -> dict[str, Any]:
        return build_axis(f"difference to {self.baseline}", range=list(self.range), nticks=6)


class _Failures(_Panel):
    weight = 0.5

    @staticmethod
    def has_data(compared: Mapping[str, Compared]) -> bool:
        """Return whether any seed failed."""
        return any(c.failures and c.failures.failed for c in compared.values())

    @staticmethod
    def caption(record: SweepRecord, compared: Mapping[str, Compared]) -> str:
        """Return what the panel shows."""
        return (
            "Failed: the share of seeds that diverged or got stuck, with its exact 95 % interval, one-sided if none "
            "or all failed."
        )

    def draw(self) -> None:
        self.range = (-6.0, 106.0)
        for row, (arm, c) in enumerate(self.compared.items()):
            share = c.failures
            if share is None:
                continue
            text = f"{escape(arm)}: {share.describe()}"
            self.add_mean(arm, row, 100 * share.failed / share.n, (100 * share.low, 100 * share.high), text)
            self.note(row - _ASIDE, f"{share.failed} of {share.n}", x=50 * (share.low + share.high), xanchor="center")

    def build_axis(self) -> dict[str, Any]:
        return build_axis("failed (%)", range=list(self.range), tickvals=[0, 50, 100])


def _describe(arm: str, estimate: Estimate, bounds: Range, sign: bool = False) -> str:
    text = format_uncertain(estimate.mean, estimate.half_width, sign=sign, bounds=bounds)
    return f"{escape(arm)}: {text} (n = {estimate.n})"
