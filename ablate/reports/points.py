"""What the figures show, as plain numbers: one `Panel` per searched parameter, one `Course` per trial."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ablate.config.errors import ConfigError
from ablate.config.formatting import is_number
from ablate.config.merging import leaves
from ablate.reports import cost
from ablate.reports.findings import sign_of
from ablate.reports.labels import LEARNING_RATE, searched, short_names
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.search_space import Range
from ablate.verdict.outcomes import FINISHED, TrialRecord

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
    """The objective; of a pruned trial the last one reported; None of a diverged trial."""
    best: bool
    """Whether it is the best of its arm."""
    lr: float | None
    """The learning rate, where it was searched."""


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
    """The range of the objective that is shown; what is worse is drawn at the edge."""
    extent: XY
    """The range of x: what was searched, and every point."""
    lines: dict[str, list[XY]] = field(default_factory=dict)
    """Arm -> its completed trials in the order of x, where nothing else was searched."""
    envelopes: dict[str, list[XY]] = field(default_factory=dict)
    """Arm -> the convex hull under (over, if more is better) its completed trials in view, where more was searched."""
    references: dict[str, float] = field(default_factory=dict)
    """Arm without this parameter -> its best objective."""
    shaded: bool = False
    """Whether the learning rate is what colours the points: one arm, which searched it too."""


@dataclass(frozen=True)
class Course:
    """The objective of one trial against what it was trained on."""

    arm: str
    number: int
    status: str
    xs: list[int]
    """Tokens or images; updates where it is not known how many these are."""
    ys: list[float]
    """The objective."""
    best: bool
    """Whether it is the best of its arm."""


def panels(record: SweepRecord) -> list[Panel]:
    """One panel for each numeric parameter that was searched or that tells arms apart; none without values to show."""
    fixed = {arm: _fixed(record, arm) for arm in record.trials}
    settings = [path for arm in record.spec.all_arms.values() for path, _ in leaves(arm.settings)]
    paths = list(dict.fromkeys([*searched(record.spec), *settings]))
    names = short_names(paths)
    found = (panel(record, path, _FILES.get(path, names[path].replace(".", "_")), fixed) for path in paths)
    return [panel for panel in found if panel is not None]


def panel(record: SweepRecord, path: str, file: str, fixed: dict[str, dict[str, float]]) -> Panel | None:
    """The panel of `path`; `fixed` are the numbers that each arm keeps constant. None where there is nothing to see."""
    spaces = {arm: record.spec.space(arm) for arm in record.trials}
    bests = {arm: record.best(arm) for arm in record.trials}
    log = _is_log(record, path)
    points = [
        Point(arm, t.number, t.status, float(x), _height(t), t is bests[arm], t.params.get(LEARNING_RATE))
        for arm, trials in record.trials.items()
        for t in trials
        if t.status in FINISHED and is_number(x := t.params.get(path, fixed[arm].get(path)))
        if x > 0 or not log
    ]
    values = [p.y for p in points if p.y is not None]
    wanted = any(path in space for space in spaces.values()) or len({p.x for p in points}) > 1
    if not values or not wanted:
        return None
    arms = list(dict.fromkeys(p.arm for p in points))
    done = {arm: [(p.x, p.y) for p in _done(points, arm) if p.y is not None] for arm in arms}
    references = {arm: b.value for arm, b in bests.items() if arm not in arms and b and b.value is not None}
    sign, rates = sign_of(record), {p.lr for p in points}
    shown = view([y for xys in done.values() for _, y in xys] + list(references.values()) or values, sign)
    alone = {arm: sorted(xys) for arm, xys in done.items() if set(spaces[arm]) == {path} and len(xys) > 1}
    inside = {arm: [(x, y) for x, y in xys if not is_off(y, shown, sign)] for arm, xys in done.items() if spaces[arm]}
    hulls = {arm: hull(xys, sign, log) for arm, xys in inside.items() if arm not in alone}
    shaded = len(arms) == 1 and path != LEARNING_RATE and None not in rates and len(rates) > 1
    return Panel(
        path,
        file,
        log,
        points,
        shown,
        _extent(record, path, points),
        alone,
        {arm: line for arm, line in hulls.items() if len(line) > 2},
        references,
        shaded,
    )


def is_off(y: float | None, shown: XY, sign: int) -> bool:
    """Whether `y` is worse than what is shown; None, of a diverged trial, is."""
    return y is None or (y > shown[1] if sign > 0 else y < shown[0])


def _done(points: list[Point], arm: str) -> list[Point]:
    return [point for point in points if point.arm == arm and point.status == "completed"]


def courses(record: SweepRecord) -> list[Course]:
    """Every trial that was validated at least once; what is not finite is left out."""
    found, measure = [], cost.Measure.of(record)
    bests = {arm: record.best(arm) for arm in record.trials}
    for arm, trials in record.trials.items():
        for t in trials:
            curve = [(step, value) for step, value in sorted(t.curve.items()) if math.isfinite(value)]
            if curve:
                xs, ys = [step * measure.per_update(t) for step, _ in curve], [value for _, value in curve]
                found.append(Course(arm, t.number, t.status, xs, ys, t is bests[arm]))
    return found


def course_view(found: list[Course], sign: int) -> XY:
    """The range of the objective to show: where most trials end, and the best of each arm after the first tenth."""
    end = max(course.xs[-1] for course in found)
    late = [y for course in found if course.best for x, y in zip(course.xs, course.ys, strict=True) if x >= end / 10]
    low, high = view([course.ys[-1] for course in found], sign)
    return min([low, *late]), max([high, *late])


def view(values: Iterable[float], sign: int) -> XY:
    """(low, high) of `values` without the outliers on the bad side.

    Outliers are more than two and a half times as far from the best as three quarters of the values are. `sign` is 1
    where less is better.
    """
    scores = sorted(sign * value for value in values)
    best, worst = scores[0], scores[-1]
    limit = best + 2.5 * float(np.quantile(scores, 0.75) - best)
    inside = worst if worst <= limit or limit == best else max(score for score in scores if score <= limit)
    low, high = sorted((sign * best, sign * inside))
    return low, high


def hull(points: list[XY], sign: int, log: bool) -> list[XY]:
    """The convex hull of `points` on their good side, in the order of x; `log` takes x in the logarithm."""
    found: list[XY] = []
    for x, y in sorted((math.log(x) if log else x, sign * y) for x, y in points):
        if found and found[-1][0] == x:
            continue
        while len(found) > 1 and _turn(found[-2], found[-1], (x, y)) <= 0:
            found.pop()
        found.append((x, y))
    return [(math.exp(x) if log else x, sign * y) for x, y in found]


def _turn(a: XY, b: XY, c: XY) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def last_value(trial: TrialRecord) -> float | None:
    """The last finite objective that `trial` reported."""
    return next((value for _, value in sorted(trial.curve.items(), reverse=True) if math.isfinite(value)), None)


def _height(trial: TrialRecord) -> float | None:
    return last_value(trial) if trial.status == "pruned" else trial.value if trial.status == "completed" else None


def _fixed(record: SweepRecord, arm: str) -> dict[str, float]:
    """The numbers that `arm` does not search; none where its experiment cannot be built (a plugin is missing)."""
    try:
        flat = record.spec.base(arm).flat()
    except ConfigError:
        return {}
    return {path: value for path, value in flat.items() if is_number(value) and path not in record.spec.space(arm)}


def _entries(record: SweepRecord, path: str) -> list[list[float]]:
    """The ends, or the values, of each entry that searches `path`."""
    entries = [space[path] for arm in record.trials if path in (space := record.spec.space(arm))]
    return [[v for v in (e.ends() if isinstance(e, Range) else e) if is_number(v)] for e in entries]


def _is_log(record: SweepRecord, path: str) -> bool:
    """Searched in the logarithm, or positive over a factor of ten or more."""
    spaces = [record.spec.space(arm) for arm in record.trials]
    if any(isinstance(entry := space.get(path), Range) and entry.log for space in spaces):
        return True
    numbers = [number for values in _entries(record, path) for number in values]
    return bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= 10


def _extent(record: SweepRecord, path: str, points: list[Point]) -> XY:
    numbers = [number for values in _entries(record, path) for number in values] + [point.x for point in points]
    return float(min(numbers)), float(max(numbers))
