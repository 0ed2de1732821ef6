"""The figures of the verdict: all arms with each fresh seed, effects and failures of a factorial, and a grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablate.config.formatting import (
    UNBOUNDED,
    format_number,
    format_setting,
    format_uncertain,
    is_number,
    shorten_paths,
)
from ablate.plots import style
from ablate.plots.figure import Axis, Entry, Figure, Panel, Part, list_entries
from ablate.plots.marks import Cells, Interval, Mark, Points, Span, Text
from ablate.reports.findings import objective_sign
from ablate.reports.labels import LEARNING_RATE, label_metric, label_parameter
from ablate.reports.ranges import choose_range, describe_mean, find_ends, list_values
from ablate.reports.verdict_sections import name_baseline
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.verdict_summary import find_bounds, name_verdict
from ablate.verdict.comparison import Compared
from ablate.verdict.effects import Effect
from ablate.verdict.failures import FailureShare
from ablate.verdict.outcomes import LOSS

_ASIDE = 0.24  # of a row: how far seeds stand below the mean of their arm
_ROW, _FRAME = 0.5, 1.6  # inches: of a row, and of all else
_SHARES = Axis("seeds that failed (%)", limits=(-8, 108), ticks={0: "0", 50: "50", 100: "100"})
_WIDTH = 0.6
"""Share of the distance between two points of a grid that the arms of one point occupy."""
_DARK = 0.55  # share from which a number is white
_EFFECTS = {True: (style.PALETTE[0], "o"), False: (style.PALETTE[1], "D")}
"""Whether it is a main effect -> colour and marker."""
MOST_COLUMNS = 4
"""Values of the settings that a grid varies beside its axis."""


def _name_rows(labels: Sequence[str]) -> Axis:
    """Return the axis of a figure with a row for each label."""
    return Axis(ticks=dict(enumerate(labels)), limits=(len(labels) - 0.5, -0.5), grid=False)


def _fold(name: str, verdict: str) -> str:
    """Return a row's label, in lines that leave room for the figure."""
    return f"{name}\n" + verdict.replace(", ", ",\n").replace(": ", ":\n").replace(" with ", "\nwith ")


def _describe_family(family: int) -> str:
    return "one comparison" if family == 1 else f"{family} comparisons together"


# ---------------------------------------------------------------------------------------------------- the arms


@dataclass(frozen=True)
class Shown:
    """What the figure of the arms shows beside their comparisons."""

    title: str
    objective: str
    label: str
    """Of the objective's axis."""
    sign: int
    """1 where less is better, -1 where more is."""
    baseline: str
    """The baseline in words."""
    baselines: Mapping[str, str]
    """Arm -> its baseline."""
    looks: style.Looks
    verdicts: Mapping[str, str]
    """Arm -> its verdict in a word or two."""
    effect: float | None = None
    """The smallest difference that matters."""
    bounds: tuple[float, float] = UNBOUNDED
    """The possible values of the objective."""
    published: Sequence[tuple[str, float, str]] = ()
    """(arm, value, source)."""
    seeds: str = "fresh seeds"
    noun: str = "seed"
    """What is counted: "run" where runs are not paired."""


def draw_verdict(record: SweepRecord, compared: Mapping[str, Compared]) -> Figure | None:
    """Return the figure of the arms of a sweep; None if no seed has ended."""
    spec, metric = record.spec, record.spec.objective.metric
    with_differences = any(c.difference for c in compared.values())
    published = [source for source in spec.published if source.metric == metric]
    shown = Shown(
        f"{record.title}: the verdict on fresh seeds" if with_differences else f"{record.title}: fresh seeds",
        spec.objective.title,
        label_metric(metric, spec),
        objective_sign(record),
        name_baseline(record),
        spec.baselines,
        spec.looks,
        {arm: name_verdict(record, arm, compared) for arm in compared},
        spec.confirm.effect,
        find_bounds(spec),
        [(arm, value, source.source) for source in published for arm, value in source.values.items()],
    )
    return draw_arms(shown, compared)


def draw_arms(shown: Shown, compared: Mapping[str, Compared]) -> Figure | None:
    """Return a row for each arm: the objective of each seed with the mean, the difference from the baseline, and the
    share of seeds that failed; None if no seed has ended."""
    if not any(c.outcomes for c in compared.values()):
        return None
    with_differences = any(c.difference for c in compared.values())
    better = "left" if shown.sign > 0 else "right"
    panels = [
        _build_values(shown, compared),
        *([_build_differences(shown, compared)] if with_differences else []),
        Panel(_list_shares(shown, compared), _SHARES, Axis(grid=False)),
    ]
    caption = (
        f"{shown.objective} on {shown.seeds}: small marks are {shown.noun}s that trained, large marks their mean with "
        "its 95 % interval, widened for every look."
    )
    if with_differences:
        caption += _caption_differences(shown, compared)
    caption += (
        f" Failed: the share of {shown.noun}s that diverged or got stuck, with its exact 95 % interval, one-sided if "
        "none or all failed. An arrow: the interval extends beyond the axis."
    )
    published = any(arm in compared for arm, _, _ in shown.published)
    return Figure(
        "verdict",
        shown.title,
        [Part(panels, 3, share="y", widths=[1.15, 1, 0.55] if with_differences else [1.6, 0.55])],
        f"light: each {shown.noun} that trained; strong: mean with its interval; {better} is better",
        caption,
        [Entry("published", "black", "D", "", hollow=True)] if published else [],
        (10.5 if with_differences else 8.0, _FRAME + _ROW * len(compared)),
    )


def _caption_differences(shown: Shown, compared: Mapping[str, Compared]) -> str:
    better = "left" if shown.sign > 0 else "right"
    paired = "mean over the seeds on which both trained"
    over = paired if shown.noun == "seed" else "difference of the means of unpaired runs"
    text = (
        f" Difference to {shown.baseline}, {better} is better: {over}, with an interval; the intervals have a joint "
        f"error of 5 % over {_describe_family(next(iter(compared.values())).family)} and all looks."
    )
    return text + (f" Grey: differences smaller than {shown.effect:.2g}, which matter." if shown.effect else "")


def _build_values(shown: Shown, compared: Mapping[str, Compared]) -> Panel:
    bounds = shown.bounds
    seeds = {arm: list_values(c.outcomes) for arm, c in compared.items()}
    ends = [e for c in compared.values() if c.estimate and (e := find_ends(c.estimate, bounds))]
    limits = choose_range([value for own in seeds.values() for value in own.values()], ends)
    marks: list[Mark] = []
    for row, (arm, c) in enumerate(compared.items()):
        colour, marker = shown.looks[arm]
        titles = [f"{arm}, {shown.noun} {seed}: {format_number(value)}" for seed, value in seeds[arm].items()]
        places = [row + _ASIDE] * len(titles)
        marks.append(Points([*seeds[arm].values()], places, colour, size=5, alpha=0.4, titles=titles))
        if c.estimate is None:
            marks.append(Text(0.03, row, f"no {shown.noun} {'trained' if c.outcomes else 'has ended'}", of_axes="x"))
            continue
        title = describe_mean(arm, c.estimate, bounds)
        marks.append(Interval(c.estimate.mean, row, find_ends(c.estimate, bounds), colour, marker, title=title))
        if [*shown.baselines.values()].count(arm) == len(shown.baselines) > 1:  # of a grid there is one at each point
            marks.append(Span(c.estimate.mean, c.estimate.mean, colour=colour, dash="--"))
    marks += _list_published(shown, list(compared), limits)
    labels = [_fold(arm, shown.verdicts[arm]) for arm in compared]
    trained = any(c.estimate for c in compared.values())
    values = Axis(shown.label, limits=limits, ticks=None if trained else {})
    return Panel(marks, values, _name_rows(labels))


def _list_published(shown: Shown, arms: list[str], limits: tuple[float, float]) -> list[Mark]:
    """Return published values as open diamonds. A value far from ours is a number at the edge, since ours would be
    indistinguishable on a scale that includes it."""
    marks: list[Mark] = []
    for arm, value, source in shown.published:
        if arm not in arms:
            continue
        row = arms.index(arm) - _ASIDE
        if limits[0] <= value <= limits[1]:
            title = f"{arm}, published: {format_number(value)} ({source})"
            marks.append(Points([value], [row], "black", "D", hollow=True, titles=[title]))
        elif value > limits[1]:
            marks.append(Text(0.985, row, f"{format_number(value)} ◇ →", align="right", of_axes="x"))
        else:
            marks.append(Text(0.015, row, f"← ◇ {format_number(value)}", of_axes="x"))
    return marks


def _build_differences(shown: Shown, compared: Mapping[str, Compared]) -> Panel:
    effect, bounds = shown.effect, (shown.bounds[0] - shown.bounds[1], shown.bounds[1] - shown.bounds[0])
    known = [d for c in compared.values() if (d := c.difference)]
    limits = choose_range([d.mean for d in known], [ends for d in known if (ends := find_ends(d, bounds))], 0.0)
    marks: list[Mark] = [Span(-effect, effect)] if effect else []
    marks.append(Span(0, 0, colour="black"))
    for row, (arm, c) in enumerate(compared.items()):
        colour, marker = shown.looks[arm]
        if d := c.difference:
            title = f"{describe_mean(arm, d, bounds, True)} to {shown.baseline}"
            marks.append(Interval(d.mean, row, find_ends(d, bounds), colour, marker, title=title))
        elif arm == shown.baselines[arm] and c.estimate:
            marks.append(Points([0], [row], colour, marker))
        else:
            marks.append(Text(0.03, row, _describe_absence(arm == shown.baselines[arm], c), of_axes="x"))
    return Panel(marks, Axis(f"{shown.label}:\ndifference to {shown.baseline}", limits=limits))


def _describe_absence(is_baseline: bool, c: Compared) -> str:
    """Return the reason that an arm has no difference to draw."""
    if c.kind == "could not be trained" or (is_baseline and not c.outcomes):
        return "no seed was run"
    if is_baseline:
        return "no seed trained"
    if c.kind == "baseline could not be trained":
        return "nothing to compare with"
    return "no seed on which both trained" if c.versus is not None and c.versus.seeds else "no seed yet"


def _list_shares(shown: Shown, compared: Mapping[str, Compared]) -> list[Mark]:
    marks = list[Mark]()
    for row, (arm, c) in enumerate(compared.items()):
        if c.failures:
            marks += [
                _mark_share(arm, c.failures, row, shown.looks[arm]),
                Text(
                    50 * (c.failures.low + c.failures.high),
                    row,
                    f"{c.failures.failed} of {c.failures.n}",
                    align="center",
                    shift=(0, 9),
                ),
            ]
    return marks


def _mark_share(arm: str, share: FailureShare, place: float, look: tuple[str, str], upright: bool = False) -> Interval:
    """Return the share of seeds that failed with its interval."""
    seen, ends = 100 * share.failed / share.n, (100 * share.low, 100 * share.high)
    x, y = (place, seen) if upright else (seen, place)
    return Interval(x, y, ends, *look, upright=upright, title=f"{arm}: {share.describe()}")


# ---------------------------------------------------------------------------------------------------- a factorial


def draw_effects(record: SweepRecord, effects: Mapping[str, Effect]) -> Figure:
    """Return a row for each effect: its mean with its interval, and the verdict in words."""
    metric, matters = record.spec.objective.metric, record.spec.confirm.effect
    better = "left" if objective_sign(record) > 0 else "right"
    known = [d for effect in effects.values() if (d := effect.versus.difference)]
    limits = choose_range([d.mean for d in known], [d.interval for d in known if d.interval], 0.0)
    marks: list[Mark] = [Span(-matters, matters)] if matters else []
    marks.append(Span(0, 0, colour="black"))
    for row, (name, effect) in enumerate(effects.items()):
        if d := effect.versus.difference:
            title = f"{name}: {format_uncertain(d.mean, d.half_width, sign=True)} (n = {d.n})"
            marks.append(Interval(d.mean, row, d.interval, *_EFFECTS[effect.contrast.is_main], title=title))
        else:
            marks.append(Text(0.03, row, "no seed trained in all cells", of_axes="x"))
    labels = [f"{name}\n{effect.name_kind()}" for name, effect in effects.items()]
    panel = Panel(marks, Axis(f"effect on {label_metric(metric, record.spec)}", limits=limits), _name_rows(labels))
    several = len({effect.contrast.is_main for effect in effects.values()}) > 1
    looks = {"main effect": _EFFECTS[True], "interaction": _EFFECTS[False]}
    sharing = _describe_family(next(iter(effects.values())).family)
    band = f" Grey: effects below the {matters:.2g} that matter." if matters else ""
    return Figure(
        "effects",
        f"{record.title}: effects on fresh seeds",
        [Part([panel])],
        f"mean and interval; {better} is better" + ("; grey: too small to matter" if matters else ""),
        f"Effects on {record.spec.objective.title}: each is a mean over the other components and over the seeds on "
        f"which all of its cells trained, with an interval that errs in 5 % for {sharing} and all looks.{band}",
        list_entries(looks, "") if several else (),
        (8.0, _FRAME + _ROW * len(effects)),
    )


def draw_failures(record: SweepRecord, compared: Mapping[str, Compared]) -> Figure | None:
    """Return a table of squares: a row for each level of one component, which is `within` or the first, and a column
    for each combination of the others. None for a sweep that is not a factorial, and if no seed failed."""
    spec = record.spec
    if not spec.designed or not any(c.failures and c.failures.failed for c in compared.values()):
        return None
    cells, components = spec.designed.cells, [*(spec.components or {})]
    of_rows, short = spec.within or components[0], shorten_paths(components)
    rows = list(dict.fromkeys(cell[of_rows] for cell in cells.values()))
    places = {
        arm: (cell[of_rows], "\n".join(f"{short[name]}={level}" for name, level in cell.items() if name != of_rows))
        for arm, cell in cells.items()
    }
    columns = list(dict.fromkeys(column for _, column in places.values()))
    shares = [[math.nan] * len(columns) for _ in rows]
    words: list[Mark] = []
    for arm, (row, column) in places.items():
        if arm not in compared or (share := compared[arm].failures) is None:
            continue
        x, y, failed = columns.index(column), rows.index(row), share.failed / share.n
        shares[y][x] = failed
        text = f"{share.failed}/{share.n}\n{100 * share.low:.0f} to {100 * share.high:.0f} %"
        words.append(Text(x, y, text, "white" if failed > _DARK else "black", "center"))
    across = Axis(ticks=dict(enumerate(columns)), grid=False)
    downwards = Axis(ticks={y: f"{short[of_rows]}={row}" for y, row in enumerate(rows)}, grid=False)
    return Figure(
        "failures",
        f"{record.title}: seeds that failed",
        [Part([Panel([Cells(shares, colours="Blues", fills=True), *words], across, downwards)])],
        "of those that ended; darker: more of them",
        "Seeds that failed (diverged or got stuck), of those that ended, in each cell; below it the exact 95 % "
        "interval of the share that fails, one-sided where none or all failed.",
        size=(style.SIZE[0], 2.0 + _ROW * len(rows)),
    )


# ---------------------------------------------------------------------------------------------------- a grid


def find_axis(record: SweepRecord) -> str | None:
    """Return the path on the x axis of the grid's figure: the searched one or, of several, the learning rate; None if
    it is no number, or if all else takes too many values."""
    points = [cell.point for cell in record.spec.cells.values()]
    paths = list(dict.fromkeys(path for point in points for path in point))
    path = paths[0] if len(paths) == 1 else LEARNING_RATE
    if path not in paths or not all(is_number(point.get(path)) for point in points):
        return None
    columns = _list_columns(record, path)
    return path if len({str(point[path]) for point in points}) > 1 and len(columns) <= MOST_COLUMNS else None


def _list_columns(record: SweepRecord, path: str) -> dict[str, list[str]]:
    """Return the values of all that is searched beside `path` -> the cells there."""
    names = shorten_paths(list(dict.fromkeys(other for cell in record.spec.cells.values() for other in cell.point)))
    columns: dict[str, list[str]] = {}
    for name, cell in record.spec.cells.items():
        rest = {names[other]: format_setting(value) for other, value in cell.point.items() if other != path}
        columns.setdefault(", ".join(f"{other} = {value}" for other, value in rest.items()), []).append(name)
    return columns


def draw_grid(record: SweepRecord, compared: Mapping[str, Compared]) -> Figure | None:
    """Return the objective of each arm at each point of a grid, and below it the share of failed seeds, with a column
    for each value of the settings searched beside the axis (`find_axis`); None without such an axis."""
    spec, path = record.spec, find_axis(record)
    if path is None:
        return None
    better = "lower" if objective_sign(record) > 0 else "higher"
    own, columns = style.choose_looks(spec.own_arms), _list_columns(record, path)
    values = sorted({float(str(cell.point[path])) for cell in spec.cells.values()})
    ticks = {place: format_setting(value) for place, value in enumerate(values)}
    between: list[Mark] = [Span(edge + 0.5, edge + 0.5, colour="#cccccc") for edge in range(len(values) - 1)]
    across = Axis(limits=(-0.5, len(values) - 0.5), ticks=ticks, grid=False)
    above, below = list[Panel](), list[Panel]()
    for title, names in columns.items():
        losses, shares = _list_cells(record, {name: compared[name] for name in names if name in compared}, path, values)
        first = not above
        metric = Axis(label_metric(spec.objective.metric, spec) if first else "")
        above.append(Panel([*between, *losses], across, metric, title))
        failed = Axis("seeds that fail (%)" if first else "", limits=_SHARES.limits, ticks=_SHARES.ticks)
        labelled = Axis(label_parameter(path), limits=across.limits, ticks=ticks, grid=False)
        below.append(Panel([*between, *shares], labelled, failed))
    width = style.SIZE[0] if len(columns) == 1 else style.SIZE[0] * (0.25 + 0.6 * len(columns))
    return Figure(
        "grid",
        f"{record.title}: {spec.objective.title} at each point of the grid",
        [Part([*above, *below], len(columns), share="xy", heights=[1, 0.42])],
        f"light: each fresh seed that trained; strong: their mean with its 95 % interval; {better} is better",
        f"{spec.objective.title} on fresh seeds against {label_parameter(path)}: every seed that trained, their mean "
        "with its 95 % interval, and below it the share of failed seeds with its exact 95 % interval.",
        list_entries({arm: own[arm] for arm in spec.own_arms}, ""),
        (width, style.SIZE[1] + 0.3),
    )


def _list_cells(
    record: SweepRecord, compared: Mapping[str, Compared], path: str, values: Sequence[float]
) -> tuple[list[Mark], list[Mark]]:
    """Return the marks of the objective and of the failures of some cells."""
    spec, cells = record.spec, record.spec.cells
    own, bounds = style.choose_looks(spec.own_arms), find_bounds(spec)
    arms, step = list(spec.own_arms), _WIDTH / max(1, len(spec.own_arms) - 1)
    losses: list[Mark] = []
    shares: list[Mark] = []
    for name, c in compared.items():
        cell = cells[name]
        look = own[cell.arm]
        x = values.index(float(str(cell.point[path]))) + (arms.index(cell.arm) - (len(arms) - 1) / 2) * step
        seeds = list_values(c.outcomes)
        titles = [f"{name}, seed {seed}: {format_number(value)}" for seed, value in seeds.items()]
        losses.append(Points([x] * len(seeds), [*seeds.values()], look[0], size=4, alpha=0.3, titles=titles))
        if e := c.estimate:
            title = describe_mean(name, e, bounds)
            losses.append(Interval(x, e.mean, find_ends(e, bounds), *look, upright=True, title=title))
        if c.failures:
            shares.append(_mark_share(name, c.failures, x, look, upright=True))
    trivial = record.trivial_loss
    if trivial is not None and spec.objective.metric == LOSS and math.isfinite(trivial):
        losses.append(Span(trivial, trivial, upright=False, colour=style.GREY, dash="--"))
        losses.append(Text(0.995, trivial, "ignores its inputs", style.GREY, "right", (0, 6), of_axes="x"))
    return losses, shares
