"""The figures of a report: the objective on fresh seeds, against each searched parameter, and against tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.config.formatting import count_noun, format_number
from ablate.plots import style
from ablate.plots.panels import save_png
from ablate.plots.style import Entry, Looks
from ablate.reports.bands import caption_bands, collect_bands, draw_bands
from ablate.reports.charts.effects import caption_effects
from ablate.reports.effects_figure import draw_effects
from ablate.reports.failures_figure import CAPTION as FAILURES
from ablate.reports.failures_figure import draw_failures, has_failures
from ablate.reports.figure_data import Course, Panel, Point, choose_course_view, collect_courses, collect_panels, is_off
from ablate.reports.findings import collect_seeds, objective_sign
from ablate.reports.grid_figure import caption_grid, draw_grid, find_axis
from ablate.reports.labels import LEARNING_RATE, choose_looks, label_metric, label_parameter, name_parameter
from ablate.reports.layer_seeds import compare_layers
from ablate.reports.layers_section import CAPTION, draw_layers_over_seeds
from ablate.reports.sensitivity import compute_sensitivity
from ablate.reports.usage import UsageUnit
from ablate.reports.verdict_figures import caption_confirmed, caption_verdict, draw_confirmed, draw_verdict
from ablate.sweeps.comparison import compare_record, compare_record_effects
from ablate.sweeps.records import SweepRecord
from ablate.verdict.records import Compared

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAND = 0.09  # of the height: kept free at the bad edge for trials without a place on the scale
_MOST_ROWS = 40
"""Of a figure with a row for each arm."""
_ARROWS = {1: "↑", -1: "↓"}  # where less is better, where more is: the way off the scale


def draw_figures(record: SweepRecord, folder: Path) -> dict[Path, str]:
    """Write grid.png, effects.png, failures.png, verdict.png, confirmed.png, bands.png, layers-seeds.png,
    learning_rate.png, alpha.png, one more per other searched number, and curves.png, those that have data; return each
    path with its caption."""
    metric = record.spec.objective.title
    figures: list[tuple[str, Figure, str]] = []
    if compared := compare_record(record):
        if axis := find_axis(record):
            figures.append(("grid", draw_grid(record, compared, axis), caption_grid(record, axis)))
        if effects := compare_record_effects(record):
            figures.append(("effects", draw_effects(record, effects), caption_effects(record, effects)))
        if has_failures(record, compared):
            figures.append(("failures", draw_failures(record, compared), FAILURES))
        if any(c.difference for c in compared.values()) and len(compared) <= _MOST_ROWS:
            figures.append(("verdict", draw_verdict(record, compared), caption_verdict(record, compared)))
        if len(compared) <= _MOST_ROWS:
            figures.append(("confirmed", draw_confirmed(record, compared), caption_confirmed(record)))
    figures += draw_over_seeds(record, compared)
    for panel in collect_panels(record):
        text = f"{metric} against {label_parameter(panel.path)}, every finished trial of the search; "
        text += f"circled: {_name_circled(record)}."
        figures.append((panel.file, draw_panel(record, panel), text))
    if trials := collect_courses(record):
        text = f"{metric} against {UsageUnit.of(record).noun}, every trial of the search; strong: the best of each arm."
        figures.append(("curves", draw_courses(record, trials), text))
    captions = {}
    for name, figure, text in figures:
        path = folder / f"{name}.png"
        save_png(figure, path)
        captions[path] = text
    return captions


def draw_over_seeds(record: SweepRecord, compared: Mapping[str, Compared]) -> list[tuple[str, Figure, str]]:
    """Return name, figure and caption of what fresh seeds did during training and what their layers do at its end,
    where that is known."""
    figures = []
    if bands := collect_bands(record, compared):
        figures.append(("bands", draw_bands(record, bands), caption_bands(record)))
    if layers := compare_layers(record):
        figures.append(("layers-seeds", draw_layers_over_seeds(record, layers), CAPTION))
    return figures


# ---------------------------------------------------------------------------------------------------- parameters


def _name_circled(record: SweepRecord) -> str:
    return "the trial of each arm that was tested on fresh seeds" if record.chosen else "the best trial of each arm"


def draw_panel(record: SweepRecord, panel: Panel) -> Figure:
    """Return the objective against one parameter."""
    objective, looks = record.spec.objective, choose_looks(record)
    figure, axes = style.create_canvas(
        f"{record.title}: {record.spec.objective.title} against {name_parameter(panel.path)}",
        f"{_describe_evidence(record, [p.arm for p in panel.points])}; circled: {_name_circled(record)}",
    )
    axes.set_xlabel(label_parameter(panel.path))
    axes.set_ylabel(label_metric(objective.metric, record.spec))
    if panel.log:
        axes.set_xscale("log")
        style.label_log_ticks(axes.xaxis)
    for arm, line in panel.lines.items():
        axes.plot(*zip(*line, strict=True), color=looks[arm][0], linewidth=1.2, zorder=2)
    for arm, line in panel.envelopes.items():
        colour = style.GREY if panel.shaded else looks[arm][0]
        axes.plot(*zip(*line, strict=True), color=colour, linewidth=1, linestyle=(0, (4, 3)), alpha=0.7, zorder=2)
    off = [p for p in panel.points if is_off(p.y, panel.view, objective_sign(record))]
    edge = _set_height(axes, panel.view, objective_sign(record), bool(off))
    shade = _add_shades(figure, axes, panel)
    for point in panel.points:
        away = _ARROWS[objective_sign(record)] if is_off(point.y, panel.view, objective_sign(record)) else ""
        _draw_point(axes, point, edge if away or point.y is None else point.y, looks, shade.get(point.number), away)
    for arm, value in panel.references.items():
        axes.axhline(value, color=looks[arm][0], linewidth=1.2, linestyle=(0, (1, 1.5)), zorder=1.5)
    _set_width(axes, panel)
    style.add_legend(figure, _list_panel_entries(record, panel, off, looks))
    return figure


def _draw_point(axes: Axes, p: Point, y: float, looks: Looks, shade: str | None = None, away: str = "") -> None:
    """Draw the mark of `p` at the height `y`: its own, or at the edge if it is off the scale, with the arrow `away`."""
    colour, marker = shade or looks[p.arm][0], looks[p.arm][1]
    if p.status == "pruned":
        axes.plot(p.x, y, "x", color=style.GREY, markersize=5.5, markeredgewidth=1.2, zorder=2.5)
    elif p.status == "diverged":
        axes.plot(p.x, y, marker, markerfacecolor="none", markeredgecolor=colour, markersize=6.5, zorder=3)
    else:
        if p.settled:
            axes.plot(p.x, y, "o", markerfacecolor="none", markeredgecolor="black", markersize=13, zorder=3.5)
        size = 6 if away else 7
        axes.plot(p.x, y, marker, color=colour, markeredgecolor="white", markeredgewidth=0.5, markersize=size, zorder=3)
        if away:
            axes.annotate(away, (p.x, y), (4, 0), textcoords="offset points", fontsize=8, va="center")


def _set_height(axes: Axes, view: tuple[float, float], sign: int, band: bool) -> float:
    """Set the limits of the objective and return where trials that are off the scale are drawn."""
    low, high = view
    pad = 0.06 * (high - low) or 0.01 * abs(high) or 0.01
    low, high = low - pad, high + pad
    axes.set_ylim(low, high)
    if not band:
        return high
    ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
    width = _BAND * (high - low)
    edge = high + width / 2 if sign > 0 else low - width / 2
    axes.set_ylim(low - (width if sign < 0 else 0), high + (width if sign > 0 else 0))
    axes.set_yticks(ticks)
    axes.axhspan(*((high, high + width) if sign > 0 else (low - width, low)), color="#f2f2f2", linewidth=0, zorder=0.5)
    return edge


def _set_width(axes: Axes, panel: Panel) -> None:
    low, high = panel.extent
    if panel.log:
        factor = max(high / low, 1.5) ** 0.04
        axes.set_xlim(low / factor, high * factor)
    else:
        margin = 0.04 * (high - low) or 0.05 * abs(high) or 0.5
        axes.set_xlim(low - margin, high + margin)


def _add_shades(figure: Figure, axes: Axes, panel: Panel) -> dict[int, str]:
    """Return number of each trial -> its colour, and add a colour bar, where the learning rate is the colour."""
    if not panel.shaded:
        return {}
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, to_hex

    rates = {p.number: p.lr for p in panel.points if p.lr is not None}
    scale, colours = LogNorm(min(rates.values()), max(rates.values())), colormaps["viridis"]
    bar = figure.colorbar(ScalarMappable(scale, colours), ax=axes, pad=0.02, fraction=0.06)
    bar.set_label(label_parameter(LEARNING_RATE), fontsize=9)
    style.label_log_ticks(bar.ax.yaxis)
    return {n: to_hex(colours(float(scale(lr)))) for n, lr in rates.items()}


# ---------------------------------------------------------------------------------------------------- curves


def draw_courses(record: SweepRecord, trials: list[Course]) -> Figure:
    """Return the objective against tokens or images, one line per trial."""
    from matplotlib.ticker import EngFormatter

    noun, objective = UsageUnit.of(record).noun, record.spec.objective
    looks, sign = choose_looks(record), objective_sign(record)
    figure, axes = style.create_canvas(
        f"{record.title}: {record.spec.objective.title} against {noun}",
        f"{_describe_evidence(record, [c.arm for c in trials])}; strong: the best of each arm",
    )
    axes.set_xlabel("updates of the optimizer" if noun == "updates" else f"{noun} trained on")
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.set_ylabel(label_metric(objective.metric, record.spec))
    view = choose_course_view(trials, sign)
    ends = [c for c in trials if c.status in ("pruned", "diverged")]
    edge = _set_height(axes, view, sign, any(is_off(c.ys[-1], view, sign) for c in ends))
    for course in trials:
        colour, marker = looks[course.arm]
        if course.best:
            few = marker if len(course.xs) <= 25 else ""
            axes.plot(course.xs, course.ys, color=colour, linewidth=2, marker=few, markersize=4.5, zorder=4)
        else:
            axes.plot(course.xs, course.ys, color=colour, linewidth=0.9, alpha=0.35, zorder=2)
        if course in ends:
            y = edge if is_off(course.ys[-1], view, sign) else course.ys[-1]
            _draw_point(
                axes, Point(course.arm, course.number, course.status, course.xs[-1], y, False, False, None), y, looks
            )
    best = {course.arm: course for course in trials if course.best}
    values = {arm: trial.value for arm in best if (trial := record.best(arm))}
    entries = [
        style.create_entry(looks[arm], f"{arm}: {format_number(values.get(arm))} (trial {c.number})", linewidth=2)
        for arm, c in best.items()
    ]
    entries += [style.create_entry(looks[arm], arm) for arm in dict.fromkeys(c.arm for c in trials) if arm not in best]
    style.add_legend(figure, entries + style.create_status_entries({c.status for c in trials}))
    return figure


# ---------------------------------------------------------------------------------------------------- words


def _describe_evidence(record: SweepRecord, arms: list[str]) -> str:
    """Return a description of the displayed trials: their number, arms and seeds; `arms` has one name per trial."""
    seeds, names = len(collect_seeds(record)), list(dict.fromkeys(arms))
    of = names[0] if len(names) == 1 else count_noun(len(names), "arm")
    return f"{count_noun(len(arms), 'trial')} of {of}, {f'{seeds} seeds' if seeds > 1 else 'one seed'}"


def _list_panel_entries(record: SweepRecord, panel: Panel, off: list[Point], looks: Looks) -> list[Entry]:
    shown = list(dict.fromkeys(p.arm for p in panel.points))
    colour = {arm: style.GREY if panel.shaded else looks[arm][0] for arm in shown}
    rates = panel.path == LEARNING_RATE
    label = {
        arm: f"{arm}, sensitivity {format_number(s.value)}"
        for arm in shown
        if rates and (s := compute_sensitivity(record, arm)) and s.value is not None
    }
    entries = [
        style.create_entry(
            (colour[arm], looks[arm][1]), label.get(arm, arm), linestyle="-" if arm in panel.lines else "none"
        )
        for arm in shown
    ]
    entries += [
        style.create_entry((looks[arm][0], ""), f"{arm}, best: {format_number(value)}", linestyle=(0, (1, 1.5)))
        for arm, value in panel.references.items()
    ]
    if panel.envelopes:
        side = "lower" if objective_sign(record) > 0 else "upper"
        entries.append(style.create_entry((style.GREY, ""), f"{side} convex hull", linestyle=(0, (4, 3))))
    entries += style.create_status_entries({p.status for p in panel.points})
    gone = sorted(p.y for p in off if p.status == "completed" and p.y is not None)
    if gone:
        values = " to ".join(dict.fromkeys((format_number(gone[0]), format_number(gone[-1]))))
        entries.append(
            style.create_entry(
                ("black", f"${_ARROWS[objective_sign(record)]}$"), f"off the scale: {values}", linestyle="none"
            )
        )
    return entries
