"""The numbers behind the figures: one `Panel` for each searched parameter, one `Course` for each trial."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ablate.config.errors import ConfigError
from ablate.config.formatting import is_number, shorten_paths
from ablate.config.merging import iterate_leaves
from ablate.reports.findings import objective_sign
from ablate.reports.labels import LEARNING_RATE, list_searched
from ablate.reports.usage import UsageUnit
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FINISHED, Run
from ablate.sweeps.search.space import Range

XY = tuple[float, float]
_FILES = {LEARNING_RATE: "learning_rate"}


@dataclass(frozen=True)
class Point:
    """One finished trial on a panel."""

    arm: str
    number: int
    status: str
    """completed, pruned or diverged."""
    x: float
    y: float | None
    """The objective; for a pruned trial the last reported value; None for a diverged trial."""
    best: bool
    """Whether it is the best of its arm."""
    settled: bool
    """Whether it is the one that was tested on fresh seeds or, before that, the best of its arm."""
    lr: float | None
    """The learning rate, if it was searched."""


@dataclass(frozen=True)
class Panel:
    """The objective against one parameter."""

    path: str
    file: str
    """The name of the figure, without .png."""
    log: bool
    """Whether x is logarithmic."""
    points: list[Point]
    view: XY
    """The displayed range of the objective; worse values are drawn at the edge."""
    extent: XY
    """The range of x: the searched range, and every point."""
    lines: dict[str, list[XY]] = field(default_factory=dict)
    """Arm -> its completed trials in the order of x, if nothing else was searched."""
    envelopes: dict[str, list[XY]] = field(default_factory=dict)
    """Arm -> the convex hull under (over, if more is better) its completed trials in view, if more was searched."""
    references: dict[str, float] = field(default_factory=dict)
    """Arm without this parameter -> its best objective."""
    fixed: dict[str, float] = field(default_factory=dict)
    """Arm that does not search this parameter -> its value, if it has one."""
    shaded: bool = False
    """Whether the points are coloured by the learning rate: there is one arm, and it searched the learning rate too."""


@dataclass(frozen=True)
class Course:
    """The objective of one trial against the amount of training data."""

    arm: str
    number: int
    status: str
    xs: list[int]
    """Tokens or images; updates if the tokens or images per update are unknown."""
    ys: list[float]
    """The objective."""
    best: bool
    """Whether it is the best of its arm."""


def collect_panels(record: SweepRecord) -> list[Panel]:
    """Return a panel for each numeric parameter that was searched or that tells arms apart; none for parameters without
    values, or with a single value."""
    fixed = {arm: _list_fixed(record, arm) for arm in record.arms}
    settings = [path for arm in record.spec.all_arms.values() for path, _ in iterate_leaves(arm.settings)]
    paths = list(dict.fromkeys([*list_searched(record.spec), *settings]))
    names = shorten_paths(paths)
    files = {path: _FILES.get(path, names[path].replace(".", "_")) for path in paths}
    return [panel for path, file in files.items() if (panel := _build_panel(record, path, file, fixed)) is not None]


def _build_panel(record: SweepRecord, path: str, file: str, fixed: dict[str, dict[str, float]]) -> Panel | None:
    """Return the panel of `path`; `fixed` are the numbers that each arm keeps constant. None if it would be empty."""
    log, sign = _is_log(record, path), objective_sign(record)
    points = _collect_points(record, path, fixed, log)
    heights = [p.y for p in points if p.y is not None]
    if not heights or len({p.x for p in points}) < 2:
        return None
    arms = list(dict.fromkeys(p.arm for p in points))
    completed = {arm: [(p.x, p.y) for p in _list_completed(points, arm) if p.y is not None] for arm in arms}
    others = {arm: best.value for arm in record.arms if arm not in arms and (best := record.best(arm))}
    references = {arm: value for arm, value in others.items() if value is not None}
    view = choose_view([y for line in completed.values() for _, y in line] + list(references.values()) or heights, sign)
    lines, envelopes = _draw_through(record, path, completed, view, log)
    rates = {p.lr for p in points}
    return Panel(
        path,
        file,
        log,
        points,
        view,
        _find_extent(record, path, points),
        lines,
        envelopes,
        references,
        {arm: values[path] for arm, values in fixed.items() if path in values},
        shaded=len(arms) == 1 and path != LEARNING_RATE and None not in rates and len(rates) > 1,
    )


def _collect_points(record: SweepRecord, path: str, fixed: dict[str, dict[str, float]], log: bool) -> list[Point]:
    """Return the finished trials that have a number under `path`; on a logarithmic scale, one above zero."""
    bests = {arm: record.best(arm) for arm in record.arms}
    settled = {arm: one.number for arm in record.arms if (one := record.settled(arm))}
    return [
        Point(
            arm,
            t.number,
            t.status,
            float(x),
            _find_height(t),
            t is bests[arm],
            t.number == settled.get(arm),
            t.params.get(LEARNING_RATE),
        )
        for arm, trials in ((arm, record.search(arm)) for arm in record.arms)
        for t in trials
        if t.status in FINISHED and is_number(x := t.params.get(path, fixed[arm].get(path)))
        if x > 0 or not log
    ]


def _draw_through(
    record: SweepRecord, path: str, completed: dict[str, list[XY]], view: XY, log: bool
) -> tuple[dict[str, list[XY]], dict[str, list[XY]]]:
    """Return arm -> the line through its completed trials where it searched `path` alone, and arm -> the convex hull
    of those in view where it searched more."""
    sign = objective_sign(record)
    spaces = {arm: record.spec.space(arm) for arm in completed}
    lines = {arm: sorted(xys) for arm, xys in completed.items() if set(spaces[arm]) == {path} and len(xys) > 1}
    inside = {
        arm: [(x, y) for x, y in xys if not is_off(y, view, sign)]
        for arm, xys in completed.items()
        if spaces[arm] and arm not in lines
    }
    hulls = {arm: compute_hull(xys, sign, log) for arm, xys in inside.items()}
    return lines, {arm: hull for arm, hull in hulls.items() if len(hull) > 2}


def is_off(y: float | None, view: XY, sign: int) -> bool:
    """Return whether `y` is worse than the displayed range; None, for a diverged trial, is."""
    return y is None or (y > view[1] if sign > 0 else y < view[0])


def _list_completed(points: list[Point], arm: str) -> list[Point]:
    return [point for point in points if point.arm == arm and point.status == "completed"]


def collect_courses(record: SweepRecord) -> list[Course]:
    """Return every trial that was validated at least once; values that are not finite are omitted."""
    courses, unit = [], UsageUnit.of(record)
    bests = {arm: record.best(arm) for arm in record.arms}
    for arm, trials in ((arm, record.search(arm)) for arm in record.arms):
        for t in trials:
            curve = [(step, value) for step, value in sorted(t.curve.items()) if math.isfinite(value)]
            if curve:
                xs, ys = [step * unit.per_update(t) for step, _ in curve], [value for _, value in curve]
                courses.append(Course(arm, t.number, t.status, xs, ys, t is bests[arm]))
    return courses


def choose_course_view(courses: list[Course], sign: int) -> XY:
    """Return the range of the objective to show: where most trials end, and the best of each arm after a tenth."""
    end = max(course.xs[-1] for course in courses)
    late = [y for course in courses if course.best for x, y in zip(course.xs, course.ys, strict=True) if x >= end / 10]
    low, high = choose_view([course.ys[-1] for course in courses], sign)
    return min([low, *late]), max([high, *late])


def choose_view(values: Iterable[float], sign: int) -> XY:
    """Return (low, high) of `values` without the outliers on the bad side.

    Outliers are more than two and a half times as far from the best as three quarters of the values are. `sign` is 1
    where less is better.
    """
    scores = sorted(sign * value for value in values)
    best, worst = scores[0], scores[-1]
    limit = best + 2.5 * float(np.quantile(scores, 0.75) - best)
    inside = worst if worst <= limit or limit == best else max(score for score in scores if score <= limit)
    low, high = sorted((sign * best, sign * inside))
    return low, high


def compute_hull(points: list[XY], sign: int, log: bool) -> list[XY]:
    """Return the convex hull of `points` on their good side, in the order of x; `log` takes x in the logarithm."""
    hull: list[XY] = []
    for x, y in sorted((math.log(x) if log else x, sign * y) for x, y in points):
        if hull and hull[-1][0] == x:
            continue
        while len(hull) > 1 and _cross_product(hull[-2], hull[-1], (x, y)) <= 0:
            hull.pop()
        hull.append((x, y))
    return [(math.exp(x) if log else x, sign * y) for x, y in hull]


def _cross_product(a: XY, b: XY, c: XY) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def find_last_value(trial: Run) -> float | None:
    """Return the last finite objective that `trial` reported."""
    return next((value for _, value in sorted(trial.curve.items(), reverse=True) if math.isfinite(value)), None)


def _find_height(trial: Run) -> float | None:
    return find_last_value(trial) if trial.status == "pruned" else trial.value if trial.status == "completed" else None


def _list_fixed(record: SweepRecord, arm: str) -> dict[str, float]:
    """Return the numbers that `arm` does not search; none where its experiment cannot be built (no plugin)."""
    try:
        flat = record.spec.base(arm).flat()
    except ConfigError:
        return {}
    return {path: value for path, value in flat.items() if is_number(value) and path not in record.spec.space(arm)}


def _list_entries(record: SweepRecord, path: str) -> list[list[float]]:
    """Return the ends, or the values, of each entry that searches `path`."""
    entries = [space[path] for arm in record.arms if path in (space := record.spec.space(arm))]
    return [[v for v in (e.ends() if isinstance(e, Range) else e) if is_number(v)] for e in entries]


def _is_log(record: SweepRecord, path: str) -> bool:
    """Return whether `path` is searched in the logarithm, or positive over a factor of ten or more."""
    spaces = [record.spec.space(arm) for arm in record.arms]
    if any(isinstance(entry := space.get(path), Range) and entry.log for space in spaces):
        return True
    numbers = [number for values in _list_entries(record, path) for number in values]
    return bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= 10


def _find_extent(record: SweepRecord, path: str, points: list[Point]) -> XY:
    numbers = [number for values in _list_entries(record, path) for number in values] + [point.x for point in points]
    return float(min(numbers)), float(max(numbers))
