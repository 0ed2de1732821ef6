"""The figures of the search: the objective against each searched number, with what fresh seeds reached there, and
against the amount of training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ablate.config.errors import ConfigError
from ablate.config.formatting import count_noun, format_number, format_setting, is_number, shorten_paths
from ablate.config.merging import iterate_leaves
from ablate.plots.figure import Axis, Bar, Entry, Figure, Panel, plot
from ablate.plots.marks import Interval, Line, Mark, Points, Span
from ablate.plots.style import GREY, SHADE, Looks, pick_shade
from ablate.reports.bands import label_amount
from ablate.reports.findings import collect_seeds, objective_sign
from ablate.reports.labels import (
    LEARNING_RATE,
    label_metric,
    label_parameter,
    list_searched,
    name_parameter,
)
from ablate.reports.ranges import Range, choose_range, choose_view, describe_mean, find_ends
from ablate.reports.sensitivity import compute_hull, compute_sensitivity, find_last_value
from ablate.reports.usage import UsageUnit
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FINISHED, SEARCH, Run
from ablate.sweeps.search import space
from ablate.sweeps.verdict_summary import find_bounds
from ablate.verdict.comparison import Compared

XY = tuple[float, float]
_FILES = {LEARNING_RATE: "learning_rate"}
_BAND = 0.09  # of the height: kept free at the bad edge for trials without a place on the scale
_RATES = "viridis"


@dataclass(frozen=True)
class Point:
    """One finished trial at its value of a parameter."""

    trial: Run
    x: float
    y: float | None
    """The objective; for a pruned trial the last reported value; None for a diverged trial."""
    best: bool
    """Whether it is the best of its arm."""
    settled: bool
    """Whether it is the one that was tested on fresh seeds or, before that, the best of its arm."""


# ---------------------------------------------------------------------------------------------------- parameters


def draw_parameters(record: SweepRecord, compared: Mapping[str, Compared]) -> list[Figure]:
    """Return a figure for each number that was searched or that tells arms apart; none for those without values, or
    with a single value."""
    fixed = {arm: _list_fixed(record, arm) for arm in record.arms}
    settings = [path for arm in record.spec.all_arms.values() for path, _ in iterate_leaves(arm.settings)]
    paths = list(dict.fromkeys([*list_searched(record.spec), *settings]))
    names = shorten_paths(paths)
    drawn = []
    for path in paths:
        own = {arm: values[path] for arm, values in fixed.items() if path in values}
        name = _FILES.get(path, names[path].replace(".", "_"))
        if figure := _draw_parameter(record, compared, path, name, own):
            drawn.append(figure)
    return drawn


def _draw_parameter(
    record: SweepRecord, compared: Mapping[str, Compared], path: str, name: str, fixed: Mapping[str, float]
) -> Figure | None:
    """Return the objective against one number. `fixed`: arm that does not search it -> its value, if it has one."""
    log, sign, objective = _is_log(record, path), objective_sign(record), record.spec.objective
    points = collect_points(record, path, fixed, log)
    heights = [p.y for p in points if p.y is not None]
    if not heights or len({p.x for p in points}) < 2:
        return None
    arms, looks, bounds = (
        list(dict.fromkeys(p.trial.arm for p in points)),
        record.spec.looks,
        find_bounds(record.spec),
    )
    completed = {
        arm: [(p.x, p.y) for p in points if p.trial.arm == arm and p.trial.status == "completed" and p.y is not None]
        for arm in arms
    }
    others = {arm: best.value for arm in record.arms if arm not in arms and (best := record.best(arm))}
    references = {arm: value for arm, value in others.items() if value is not None}
    view = choose_view([y for line in completed.values() for _, y in line] + [*references.values()] or heights, sign)
    fresh = {arm: c for arm, c in compared.items() if c.estimate and is_number(_find_place(c, path, fixed, arm))}
    means = [c.estimate for c in fresh.values() if c.estimate]
    low, high = choose_range([*view, *(e.mean for e in means)], [e for one in means if (e := find_ends(one, bounds))])
    off = [p for p in points if is_off(p.y, (low, high), sign)]
    width = _BAND * (high - low) if off else 0
    edge = high + width / 2 if sign > 0 else low - width / 2
    bar = _scale_rates(points) if len(arms) == 1 and path != LEARNING_RATE else None
    band = (high, high + width) if sign > 0 else (low - width, low)
    marks: list[Mark] = [Span(*band, upright=False)] if off else []
    marks += _list_lines(record, path, completed, (low, high), log, GREY if bar else "")
    marks += [Span(value, value, False, looks[arm][0], ":") for arm, value in references.items()]
    for p in points:
        y = edge if p.y is None or p in off else p.y
        marks += _mark_point(p, y, looks, _shade(p, bar))
    for arm, c in fresh.items():
        assert c.estimate is not None
        x, title = float(_find_place(c, path, fixed, arm)), f"{describe_mean(arm, c.estimate, bounds)}, on fresh seeds"
        ends = find_ends(c.estimate, bounds)
        marks.append(Interval(x, c.estimate.mean, ends, *looks[arm], upright=True, title=title, size=9))
    circled = "the trial of each arm that was tested on fresh seeds" if record.chosen else "the best trial of each arm"
    limits = (min(low, band[0]), max(high, band[1])) if off else (low, high)
    across = Axis(label_parameter(path), log, limits=_find_extent(record, path, points, log))
    strong = "; large, with a 95 % interval: mean of the fresh seeds at the chosen setting" if fresh else ""
    return plot(
        name,
        f"{record.title}: {objective.title} against {name_parameter(path)}",
        Panel(
            marks, across, Axis(label_metric(objective.metric, record.spec), limits=limits, within=(low, high)), bar=bar
        ),
        subtitle=f"{_describe_evidence(record, [p.trial.arm for p in points])}; circled: {circled}{strong}",
        caption=f"{objective.title} against {label_parameter(path)}, every finished trial of the search, one seed "
        f"each, so the best value is optimistic; circled: {circled}{strong}."
        + (" Grey band: diverged, or worse than the scale." if off else ""),
        entries=_list_entries(record, path, points, off, completed, references, bar is not None),
    )


def collect_points(record: SweepRecord, path: str, fixed: Mapping[str, float], log: bool) -> list[Point]:
    """Return the finished trials that have a number under `path`; on a logarithmic scale, one above zero."""
    bests = {arm: record.best(arm) for arm in record.arms}
    settled = {arm: one.number for arm in record.arms if (one := record.settled(arm))}
    return [
        Point(
            t,
            float(x),
            {"pruned": find_last_value(t), "completed": t.value}.get(t.status),
            t is bests[arm],
            t.number == settled.get(arm),
        )
        for arm in record.arms
        for t in record.search(arm)
        if t.status in FINISHED and is_number(x := t.params.get(path, fixed.get(arm)))
        if x > 0 or not log
    ]


def _find_place(c: Compared, path: str, fixed: Mapping[str, float], arm: str) -> float:
    """Return the number at which an arm was tested on fresh seeds; NaN if it has no such number."""
    place = c.params.get(path, fixed.get(arm))
    return float(place) if is_number(place) else math.nan


def is_off(y: float | None, view: Range, sign: int) -> bool:
    """Return whether `y` is worse than the displayed range; None, for a diverged trial, is."""
    return y is None or (y > view[1] if sign > 0 else y < view[0])


def _list_lines(
    record: SweepRecord, path: str, completed: Mapping[str, list[XY]], view: Range, log: bool, colour: str
) -> list[Mark]:
    """Return a line through the completed trials of an arm that searched `path` alone, and the convex hull of those in
    view of one that searched more; `colour`: "" for that of the arm."""
    sign, looks, marks = objective_sign(record), record.spec.looks, list[Mark]()
    for arm, xys in completed.items():
        searched = set(record.spec.space(arm))
        if searched == {path} and len(xys) > 1:
            xs, ys = zip(*sorted(xys), strict=True)
            marks.append(Line(xs, ys, looks[arm][0], 1.2))
        elif searched and len(hull := compute_hull([xy for xy in xys if not is_off(xy[1], view, sign)], sign, log)) > 2:
            xs, ys = zip(*hull, strict=True)
            marks.append(Line(xs, ys, colour or looks[arm][0], 1, "--", 0.7))
    return marks


def _scale_rates(points: list[Point]) -> Bar | None:
    """Return the colours of the learning rate, if it was searched too."""
    rates = [rate for p in points if is_number(rate := p.trial.params.get(LEARNING_RATE))]
    if len(rates) < len(points) or len(set(rates)) < 2:
        return None
    return Bar(label_parameter(LEARNING_RATE), (min(rates), max(rates)), True, _RATES)


def _shade(p: Point, bar: Bar | None) -> str:
    """Return the colour of a trial's learning rate; "" without a scale."""
    if bar is None:
        return ""
    low, high = map(math.log, bar.limits)
    return pick_shade((math.log(p.trial.params[LEARNING_RATE]) - low) / (high - low), bar.colours)


def _mark_point(p: Point, y: float, looks: Looks, shade: str = "") -> list[Mark]:
    """Return the marks of a trial at the height `y`, in the colour `shade` or that of its arm."""
    t = p.trial
    value = {"diverged": "diverged", "pruned": f"pruned at {format_number(p.y)}"}.get(t.status, format_number(p.y))
    rate = t.params.get(LEARNING_RATE)
    more = f", lr {format_setting(rate)}" if rate is not None and rate != p.x else ""
    best = ", the best of its search (optimistic)" if p.best else ""
    titles = [f"{t.arm}, trial {t.number}: {value} at {format_setting(p.x)}{more}{best}"]
    colour, marker = looks[t.arm]
    if t.status == "pruned":
        return [Points([p.x], [y], GREY, "x", 5.5, titles=titles)]
    if t.status == "diverged":
        return [Points([p.x], [y], shade or colour, marker, 6.5, hollow=True, titles=titles)]
    ring: list[Mark] = [Points([p.x], [y], "black", "o", 12, hollow=True)] if p.settled else []
    return [*ring, Points([p.x], [y], shade or colour, marker, titles=titles, edge="white")]


def _list_entries(
    record: SweepRecord,
    path: str,
    points: list[Point],
    off: list[Point],
    completed: Mapping[str, list[XY]],
    references: Mapping[str, float],
    is_shaded: bool,
) -> list[Entry]:
    looks, entries = record.spec.looks, []
    for arm, xys in completed.items():
        sensitivity = compute_sensitivity(record, arm) if path == LEARNING_RATE else None
        known = sensitivity.value if sensitivity else None
        label = arm if known is None else f"{arm}, sensitivity {format_number(known)}"
        dash = "-" if set(record.spec.space(arm)) == {path} and len(xys) > 1 else ""
        entries.append(Entry(label, GREY if is_shaded else looks[arm][0], looks[arm][1], dash))
    entries += [Entry(f"{a}, best: {format_number(v)}", looks[a][0], dash=":") for a, v in references.items()]
    if any(set(record.spec.space(arm)) > {path} for arm in completed):
        entries.append(Entry(f"{'lower' if objective_sign(record) > 0 else 'upper'} convex hull", GREY, dash="--"))
    entries += list_status_entries({p.trial.status for p in points})
    if gone := sorted(p.y for p in off if p.y is not None and p.trial.status == "completed"):
        values = " to ".join(dict.fromkeys((format_number(gone[0]), format_number(gone[-1]))))
        entries.append(Entry(f"off the scale: {values}", SHADE, "s", ""))
    return entries


def list_status_entries(statuses: set[str]) -> list[Entry]:
    """Return the entries of pruned and diverged trials, if `statuses` contains them."""
    known = {"diverged": Entry("diverged", GREY, "o", "", True), "pruned": Entry("pruned, last value", GREY, "x", "")}
    return [entry for status, entry in known.items() if status in statuses]


def _list_fixed(record: SweepRecord, arm: str) -> dict[str, float]:
    """Return the numbers that `arm` does not search; none where its experiment cannot be built (no plugin)."""
    try:
        flat = record.spec.base(arm).flat()
    except ConfigError:
        return {}
    return {path: value for path, value in flat.items() if is_number(value) and path not in record.spec.space(arm)}


def _list_tried(record: SweepRecord, path: str) -> list[float]:
    """Return the ends, or the values, of all entries that search `path`."""
    entries = [found[path] for arm in record.arms if path in (found := record.spec.space(arm))]
    values = [v for entry in entries for v in (entry.ends() if isinstance(entry, space.Range) else entry)]
    return [value for value in values if is_number(value)]


def _is_log(record: SweepRecord, path: str) -> bool:
    """Return whether `path` is searched in the logarithm, or positive over a factor of ten or more."""
    entries = [record.spec.space(arm).get(path) for arm in record.arms]
    if any(isinstance(entry, space.Range) and entry.log for entry in entries):
        return True
    numbers = _list_tried(record, path)
    return bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= 10


def _find_extent(record: SweepRecord, path: str, points: list[Point], log: bool) -> Range:
    """Return the ends of the axis: the searched range and every point, with a margin."""
    numbers = [*_list_tried(record, path), *(point.x for point in points)]
    low, high = float(min(numbers)), float(max(numbers))
    if log:
        factor = max(high / low, 1.5) ** 0.04
        return low / factor, high * factor
    margin = 0.04 * (high - low) or 0.05 * abs(high) or 0.5
    return low - margin, high + margin


def _describe_evidence(record: SweepRecord, arms: list[str]) -> str:
    """Return a description of the displayed trials: their number, arms and seeds; `arms` has one name per trial."""
    seeds, names = len(collect_seeds(record)), list(dict.fromkeys(arms))
    of = names[0] if len(names) == 1 else count_noun(len(names), "arm")
    return f"{count_noun(len(arms), 'trial')} of {of}, {f'{seeds} seeds' if seeds > 1 else 'one seed'}"


# ---------------------------------------------------------------------------------------------------- curves


def draw_curves(record: SweepRecord) -> Figure | None:
    """Return the objective of every trial of the search against tokens or images, or against updates where those are
    not known; None if none was validated. Values that are not finite are left out."""
    unit, objective, looks, sign = (
        UsageUnit.of(record),
        record.spec.objective,
        record.spec.looks,
        objective_sign(record),
    )
    bests = {arm: record.best(arm) for arm in record.arms}
    courses: list[tuple[Run, list[float], list[float]]] = []
    for trial in record.runs.select(stage=SEARCH):
        curve = {step: value for step, value in sorted(trial.curve.items()) if math.isfinite(value)}
        if curve:
            courses.append((trial, [step * unit.per_update(trial) for step in curve], [*curve.values()]))
    if not courses:
        return None
    shown = [trial for trial, _, _ in courses]
    low, high = choose_course_view(courses, [t for t in bests.values() if t], sign)
    pad = 0.06 * (high - low) or 0.01 * abs(high) or 0.01
    view = low - pad, high + pad
    ends = [(t, xs[-1], ys[-1]) for t, xs, ys in courses if t.status in ("pruned", "diverged")]
    width = _BAND * (view[1] - view[0]) if any(is_off(y, view, sign) for _, _, y in ends) else 0
    edge = view[1] + width / 2 if sign > 0 else view[0] - width / 2
    limits = (view[0], view[1] + width) if sign > 0 else (view[0] - width, view[1])
    marks: list[Mark] = [Span(*((view[1], limits[1]) if sign > 0 else (limits[0], view[0])), False)] if width else []
    for trial, xs, ys in sorted(courses, key=lambda course: course[0] is bests[course[0].arm]):
        colour, marker = looks[trial.arm]
        if trial is bests[trial.arm]:
            titles = [f"{trial.arm}, trial {trial.number}: {format_number(y)}" for y in ys]
            marks.append(Line(xs, ys, colour, 2, marker=marker if len(xs) <= 25 else "", titles=titles))
        else:
            marks.append(Line(xs, ys, colour, 0.9, alpha=0.35))
    for trial, x, y in ends:
        marks += _mark_point(Point(trial, x, y, False, False), edge if is_off(y, view, sign) else y, looks)
    entries = [
        Entry(f"{arm}: {format_number(t.value)} (trial {t.number})", *looks[arm])
        for arm, t in bests.items()
        if t in shown
    ]
    entries += [Entry(arm, *looks[arm]) for arm in dict.fromkeys(t.arm for t in shown) if bests[arm] not in shown]
    return plot(
        "curves",
        f"{record.title}: {objective.title} against {unit.noun}",
        Panel(
            marks,
            label_amount(unit.noun),
            Axis(label_metric(objective.metric, record.spec), limits=limits, within=view),
        ),
        subtitle=f"{_describe_evidence(record, [t.arm for t in shown])}; strong: the best of each arm",
        caption=f"{objective.title} against {unit.noun}, every trial of the search, one seed each; strong: the best of "
        "each arm, whose value is optimistic.",
        entries=entries + list_status_entries({t.status for t in shown}),
    )


def choose_course_view(courses: list[tuple[Run, list[float], list[float]]], bests: list[Run], sign: int) -> Range:
    """Return the range of the objective to show: where most trials end, and the best of each arm after a tenth."""
    end = max(xs[-1] for _, xs, _ in courses)
    late = [y for t, xs, ys in courses if t in bests for x, y in zip(xs, ys, strict=True) if x >= end / 10]
    low, high = choose_view([ys[-1] for _, _, ys in courses], sign)
    return min([low, *late]), max([high, *late])
