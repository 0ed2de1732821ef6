"""The objective against the amount of training data: for each arm the mean over its fresh seeds, with the range of the
seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ablate.config.formatting import count_noun, format_count, format_number
from ablate.reports.charts.chart import (
    Chart,
    Range,
    Trace,
    build_axis,
    build_layout,
    choose_range,
    escape,
    fade,
)
from ablate.reports.figure_data import collect_courses
from ablate.reports.findings import objective_sign
from ablate.reports.labels import choose_looks, label_metric
from ablate.reports.usage import UsageUnit
from ablate.sweeps.records import SweepRecord

Line = list[tuple[float, float]]


@dataclass
class Bundle:
    """The curves of the fresh seeds of an arm."""

    trained: list[Line] = field(default_factory=list)
    failed: list[Line] = field(default_factory=list)

    def find_band(self) -> list[tuple[float, float, float, float]]:
        """Return (x, mean, lowest, highest) over the seeds that trained, at each point that all of them have."""
        if not self.trained:
            return []
        common = set.intersection(*({x for x, _ in line} for line in self.trained))
        rows = []
        for x in sorted(common):
            values = [y for line in self.trained for at, y in line if at == x]
            rows.append((x, math.fsum(values) / len(values), min(values), max(values)))
        return rows


def chart_curves(record: SweepRecord) -> Chart | None:
    """Return the curves of the fresh seeds or, before there are any, of the best trial of each search; None without
    either, and if runs were validated only once."""
    bundles = collect_bundles(record)
    if bundles and all(len(line) < 2 for bundle in bundles.values() for line in [*bundle.trained, *bundle.failed]):
        return None
    if not any(bundle.trained for bundle in bundles.values()):
        return _chart_search(record)
    metric, unit = record.spec.objective.title, UsageUnit.of(record)
    looks = choose_looks(record)
    traces: list[Trace] = []
    for arm, bundle in bundles.items():
        traces += _draw_bundle(arm, bundle, looks[arm][0], unit.noun)
    bands = {arm: bundle.find_band() for arm, bundle in bundles.items()}
    caption = "Lines: mean over the fresh seeds that trained; bands: from the lowest to the highest seed" + (
        "; dotted: seeds that failed." if any(bundle.failed for bundle in bundles.values()) else "."
    )
    layout = _lay_out(record, [row for band in bands.values() for row in band], unit.noun)
    return Chart("curves", f"{metric} during training, on fresh seeds", caption, traces, layout, "bands.png")


def collect_bundles(record: SweepRecord) -> dict[str, Bundle]:
    """Return arm -> the curves of its fresh seeds that ended."""
    unit = UsageUnit.of(record)
    bundles: dict[str, Bundle] = {}
    for arm in record.arms:
        runs = record.fresh(arm)
        outcomes = runs.outcomes()
        for run in runs:
            outcome = outcomes.get(run.seed)
            line = [
                (float(step * unit.per_update(run)), v) for step, v in sorted(run.curve.items()) if math.isfinite(v)
            ]
            if outcome is None or not line:
                continue
            bundle = bundles.setdefault(arm, Bundle())
            (bundle.trained if outcome.trained else bundle.failed).append(line)
    return bundles


def _draw_bundle(arm: str, bundle: Bundle, colour: str, noun: str) -> list[Trace]:
    traces: list[Trace] = []
    band, n = bundle.find_band(), len(bundle.trained)
    name = f"{escape(arm)} ({count_noun(n, 'seed')})"
    if band:
        xs = [x for x, *_ in band]
        if n > 1:
            traces.append(
                {
                    "type": "scatter", "mode": "lines", "x": [*xs, *reversed(xs)], "fill": "toself",
                    "y": [*(high for *_, high in band), *(low for _, _, low, _ in reversed(band))],
                    "fillcolor": fade(colour, 0.18), "line": {"width": 0}, "hoverinfo": "skip", "legendgroup": arm,
                    "showlegend": False,
                }
            )  # fmt: skip
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers" if len(xs) <= 30 else "lines", "x": xs,
                "y": [mean for _, mean, *_ in band], "name": name, "legendgroup": arm,
                "line": {"color": colour, "width": 2}, "marker": {"size": 5, "color": colour},
                "text": [
                    f"{name}<br>{format_count(x)} {noun}: {format_number(mean)}<br>seeds from {format_number(low)} to "
                    f"{format_number(high)}"
                    for x, mean, low, high in band
                ],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )  # fmt: skip
    for line in bundle.failed:
        traces.append(
            {
                "type": "scatter", "mode": "lines", "x": [x for x, _ in line], "y": [y for _, y in line],
                "line": {"color": colour, "width": 1.2, "dash": "dot"}, "legendgroup": arm,
                "name": f"{escape(arm)}, no seed trained", "showlegend": not band and line is bundle.failed[0],
                "text": [f"{escape(arm)}, a seed that failed: {format_number(y)}" for _, y in line],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )  # fmt: skip
    return traces


def _chart_search(record: SweepRecord) -> Chart | None:
    courses = collect_courses(record)
    if not courses:
        return None
    noun, looks = UsageUnit.of(record).noun, choose_looks(record)
    traces: list[Trace] = []
    with_best = {course.arm for course in courses if course.best}
    firsts = {course.arm: course for course in reversed(courses)}
    for course in sorted(courses, key=lambda c: c.best):
        name = f"{escape(course.arm)}, trial {course.number}"
        known, first = course.arm in with_best, course is firsts[course.arm]
        traces.append(
            {
                "type": "scatter", "mode": "lines", "x": course.xs, "y": course.ys, "legendgroup": course.arm,
                "name": f"{name}, the best" if course.best else escape(course.arm),
                "showlegend": course.best or (first and not known), "opacity": 1 if course.best else 0.3,
                "line": {"color": looks[course.arm][0], "width": 2 if course.best else 1},
                "text": [f"{name}, {course.status}: {format_number(y)}" for y in course.ys],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )  # fmt: skip
    rows = [(float(x), y, y, y) for c in courses if c.best for x, y in zip(c.xs, c.ys, strict=True)]
    rows = rows or [(float(x), y, y, y) for c in courses for x, y in zip(c.xs, c.ys, strict=True)]
    caption = "Every trial of the search, one seed each; strong: the best trial of each arm, whose value is optimistic."
    metric = record.spec.objective.title
    return Chart(
        "curves",
        f"{metric} during training, in the search",
        caption,
        traces,
        _lay_out(record, rows, noun),
        "curves.png",
    )


def _lay_out(record: SweepRecord, rows: list[tuple[float, float, float, float]], noun: str) -> dict[str, object]:
    """Return axes that show `rows` (x, mean, lowest, highest); on the bad side, only the rows after the first tenth
    determine the range, since losses start far above."""
    end, sign = max(x for x, *_ in rows), objective_sign(record)
    late = [row for row in rows if row[0] >= end / 10] or rows
    low, high = choose_range([low for *_, low, _ in late] + [high for *_, high in late])
    every: Range = choose_range([low for *_, low, _ in rows] + [high for *_, high in rows])
    low, high = (every[0], high) if sign > 0 else (low, every[1])
    x_title = "updates of the optimizer" if noun == "updates" else f"{noun} trained on"
    return build_layout(
        400,
        xaxis=build_axis(x_title, exponentformat="SI", nticks=7, rangemode="tozero"),
        yaxis=build_axis(label_metric(record.spec.objective.metric, record.spec), range=[low, high], nticks=7),
    )
