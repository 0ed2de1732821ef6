"""The figures of the verdict: each fresh seed with the means, and an overview of all arms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablate.config.formatting import format_number
from ablate.plots import style
from ablate.reports.charts.chart import choose_range, find_ends
from ablate.reports.confirmation import name_baseline
from ablate.reports.findings import objective_sign
from ablate.reports.labels import choose_looks, label_metric
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.parts import Published
from ablate.sweeps.verdict_summary import find_bounds, find_difference_bounds, name_verdict
from ablate.verdict.intervals import Estimate
from ablate.verdict.outcomes import Outcome
from ablate.verdict.records import Compared

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ASIDE = 0.2  # of a row: how far seeds stand below the mean of their arm and published values above it
_BAND = 0.16  # of the width: kept free at the bad edge for seeds that failed
_SHADE = "#f2f2f2"
_SHARES = 0.36  # of the width of the values: that of the failures beside them


def caption_confirmed(record: SweepRecord) -> str:
    """Return the caption of `draw_confirmed`."""
    return (
        f"{record.spec.objective.title} of each arm on fresh seeds: every seed, failed seeds in the grey band at the "
        "bad edge with their number; the mean of the seeds that trained with its 95 % interval; and the share of "
        "failed seeds with its exact 95 % interval, one-sided if none or all failed."
    )


def caption_verdict(record: SweepRecord, compared: Mapping[str, Compared]) -> str:
    """Return the caption of `draw_verdict`."""
    family = next(iter(compared.values())).family
    effect = record.spec.confirm.effect
    band = f" Grey: differences smaller than confirm.effect ({effect:.2g})." if effect else ""
    sharing = "one comparison" if family == 1 else f"{family} comparisons together"
    return (
        f"The verdict on each arm: the mean of its differences from {name_baseline(record)} over the seeds on which "
        f"both trained, with an interval; the intervals have a joint error of 5 % over {sharing} and all looks; and "
        f"the share of its failed seeds, with its exact 95 % interval.{band}"
    )


def draw_confirmed(record: SweepRecord, compared: Mapping[str, Compared]) -> Figure:
    """Return one row per arm: each fresh seed, the mean and its interval, the published value where there is one, and
    beside them the share of seeds that fails."""
    objective, looks = record.spec.objective, choose_looks(record)
    figure, axes, side = _create_pair(
        f"{record.title}: {record.spec.objective.title} on fresh seeds",
        "light: each seed; strong: mean and 95 % interval where it trained"
        + ("" if record.spec.at_grid else "; line: the baseline's mean"),
    )
    axes.set_xlabel(label_metric(objective.metric, record.spec))
    reach: list[float] = []
    bounds = find_bounds(objective.metric)
    for row, (arm, result) in enumerate(compared.items()):
        colour, marker = looks[arm]
        values = [o.value for o in result.outcomes.values() if o.trained and o.value is not None]
        mean = result.estimate
        axes.plot(values, [row + _ASIDE] * len(values), "o", color=colour, alpha=0.4, markeredgewidth=0, zorder=2)
        if mean:
            _draw_mean(axes, row, mean, bounds, fmt=marker, color=colour, capsize=4, zorder=3)
            if arm == record.spec.compared_with:  # of a grid there is one at each point
                axes.axvline(mean.mean, color=colour, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        reach += [*values, *((find_ends(mean, bounds) or ()) if mean else ())]
    means = [c.estimate for c in compared.values() if c.estimate]
    if means:
        seeds = [o.value for c in compared.values() for o in c.outcomes.values() if o.trained and o.value is not None]
        axes.set_xlim(*choose_range(seeds, [ends for mean in means if (ends := find_ends(mean, bounds))]))
    entries = []
    if published := [p for p in record.spec.published if p.metric == objective.metric]:
        _draw_published(axes, published, list(compared), reach)
        look = ("black", "D")
        entries.append(style.create_entry(look, "published", linestyle="none", markerfacecolor="none"))
    if any(_list_failed(c.outcomes.values()) for c in compared.values()):
        _draw_band(axes, record, compared)
        look = (style.GREY, "o")
        entries.append(style.create_entry(look, "failed: diverged or stuck", linestyle="none", markerfacecolor="none"))
    _draw_shares(side, compared, looks)
    counts = {arm: c.estimate.n if c.estimate else 0 for arm, c in compared.items()}
    _label_rows(axes, [f"{style.escape_math(arm)} (n = {n})" for arm, n in counts.items()])
    if entries:
        style.add_legend(figure, entries)
    return figure


def _describe_absence(is_baseline: bool, c: Compared) -> str:
    """Return the reason that an arm has no difference to draw."""
    if c.kind == "could not be trained" or (is_baseline and not c.outcomes):
        return "no seed was run"
    if is_baseline:
        return "no seed trained"
    if c.kind == "baseline could not be trained":
        return "nothing to compare with"
    return "no seed on which both trained" if c.versus is not None and c.versus.seeds else "no seed yet"


def draw_verdict(record: SweepRecord, compared: Mapping[str, Compared]) -> Figure:
    """Return one row per arm: its difference from the baseline with its interval, the verdict in words, and the share
    of its seeds that fails."""
    baselines, effect = record.spec.baselines, record.spec.confirm.effect
    looks = choose_looks(record)
    better = "left" if objective_sign(record) > 0 else "right"
    figure, axes, side = _create_pair(
        f"{record.title}: the verdict on fresh seeds",
        f"difference where both train, with its interval; {better} is better"
        + ("; grey: too small to matter" if effect else ""),
    )
    metric = record.spec.objective.metric
    bounds = find_difference_bounds(metric)
    baseline_name = style.escape_math(name_baseline(record))
    axes.set_xlabel(f"{label_metric(metric, record.spec)}:\ndifference to {baseline_name}")
    if effect:
        axes.axvspan(-effect, effect, color=_SHADE, linewidth=0, zorder=0.5)
    axes.axvline(0, color="black", linewidth=1, zorder=1)
    for row, (arm, c) in enumerate(compared.items()):
        colour, marker = looks[arm]
        d = c.difference
        if d is not None:
            _draw_mean(axes, row, d, bounds, fmt=marker, color=colour, capsize=4, zorder=3)
            if c.crossed and (there := c.crossed.difference) is not None:
                _draw_mean(
                    axes,
                    row + _ASIDE,
                    there,
                    bounds,
                    fmt=marker,
                    color=colour,
                    markerfacecolor="white",
                    alpha=0.6,
                    capsize=3,
                    zorder=2.5,
                )
        elif arm == baselines[arm] and c.estimate is not None:
            axes.plot(0, row, marker, color=colour, zorder=3)
        else:
            axes.text(
                0.03,
                row,
                _describe_absence(arm == baselines[arm], c),
                va="center",
                fontsize=8.5,
                transform=axes.get_yaxis_transform(),
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},  # over the line at zero
            )
    crossed = [d for c in compared.values() if c.crossed and (d := c.crossed.difference)]
    known = [*(c.difference for c in compared.values() if c.difference), *crossed]
    if known:
        ends = [ends for d in known if (ends := find_ends(d, bounds))]
        axes.set_xlim(*choose_range([d.mean for d in known], ends, 0.0))
    else:
        axes.set_xlim(-1, 1)
        axes.set_xticks([0])
    if any(c.crossed and c.crossed.difference for c in compared.values()):
        look = (style.GREY, "o")
        text = "the worse arm, trained at the other's settings: also required for the verdict"
        style.add_legend(figure, [style.create_entry(look, text, markerfacecolor="white")])
    _draw_shares(side, compared, looks)
    names = {arm: style.escape_math(arm) for arm in compared}
    _label_rows(axes, [f"{names[arm]}\n{_fold(name_verdict(record, arm, compared))}" for arm in compared])
    return figure


def _draw_mean(axes: Axes, row: float, mean: Estimate, bounds: tuple[float, float], **look: Any) -> None:
    """Draw a mean with its interval, without what lies outside `bounds`."""
    low, high = find_ends(mean, bounds) or (mean.mean, mean.mean)
    reach = [[mean.mean - low], [high - mean.mean]] if mean.interval else None
    axes.errorbar(mean.mean, row, xerr=reach, **look)


def _fold(verdict: str) -> str:
    """Return a verdict in lines that leave room for the figure."""
    return verdict.replace(", ", ",\n").replace(": ", ":\n").replace(" with ", "\nwith ")


def _create_pair(title: str, subtitle: str) -> tuple[Figure, Axes, Axes]:
    """Return a figure with axes for values and, beside them, for the shares of seeds that fail, a row for each arm."""
    figure, axes = style.create_canvas(title, subtitle)
    grid = figure.add_gridspec(1, 2, width_ratios=[1, _SHARES])
    axes.set_subplotspec(grid[0])
    for text in axes.texts:  # the subtitle may reach over both
        text.set_in_layout(False)
    side = figure.add_subplot(grid[1], sharey=axes)
    side.spines[["top", "right"]].set_visible(False)
    side.grid(True, which="major", axis="x", color="#e6e6e6", linewidth=0.7)
    side.set_axisbelow(True)
    side.set_xlim(-8, 108)
    side.set_xticks([0, 50, 100])
    side.set_xlabel("failed\nseeds (%)")
    side.tick_params(axis="y", labelleft=False, length=0)
    axes.grid(False, axis="y")
    return figure, axes, side


def _label_rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)


def _draw_shares(side: Axes, compared: Mapping[str, Compared], looks: style.Looks) -> None:
    """Draw the share of seeds that failed with its interval; an interval with one side ends there in no cap."""
    for row, (arm, c) in enumerate(compared.items()):
        share, (colour, marker) = c.failures, looks[arm]
        if share is None:
            continue
        seen = 100 * share.failed / share.n
        reach = [[seen - 100 * share.low], [100 * share.high - seen]]
        side.errorbar(seen, row, xerr=reach, fmt=marker, color=colour, capsize=4, zorder=3, clip_on=False)
        side.annotate(
            f"{share.failed} of {share.n}",
            (50 * (share.low + share.high), row),
            (0, 7),
            textcoords="offset points",
            fontsize=8,
            ha="center",
            annotation_clip=False,
        )


def _list_failed(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if not outcome.trained]


def _draw_band(axes: Axes, record: SweepRecord, compared: Mapping[str, Compared]) -> None:
    """Draw each seed that failed as an open mark in a band at the bad edge, with the number of each arm."""
    looks = choose_looks(record)
    low, high = axes.get_xlim()
    if not any(c.estimate for c in compared.values()):
        low, high = 0.0, 1.0
        axes.set_xticks([])
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    width = _BAND * (high - low) / (1 - _BAND)
    left = objective_sign(record) < 0
    start = low - width if left else high
    axes.set_xlim(low - width if left else low, high if left else high + width)
    axes.set_xticks(ticks)
    axes.axvspan(start, start + width, color=_SHADE, linewidth=0, zorder=0.5)
    for row, (arm, c) in enumerate(compared.items()):
        failed = _list_failed(c.outcomes.values())
        xs = [start + width * (i + 1) / (len(failed) + 1) for i in range(len(failed))]
        colour = looks[arm][0]
        axes.plot(xs, [row + _ASIDE] * len(xs), "o", markerfacecolor="none", markeredgecolor=colour, zorder=3)
        if failed:
            axes.text(start + width / 2, row, f"{len(failed)} failed", ha="center", va="center", fontsize=8.5)


def _draw_published(axes: Axes, published: Sequence[Published], arms: list[str], reach: list[float]) -> None:
    """Draw published values as open diamonds. A value far from ours is drawn at the edge with its number, since ours
    would be indistinguishable on a scale that includes it."""
    low, high = (min(reach), max(reach)) if reach else (-math.inf, math.inf)
    room = 2 * (high - low)
    for row, value in ((arms.index(arm), v) for p in published for arm, v in p.values.items() if arm in arms):
        if low - room <= value <= high + room:
            axes.plot(value, row - _ASIDE, "D", markerfacecolor="none", markeredgecolor="black", markersize=7, zorder=4)
        else:
            right = value > high
            x, side, text = (
                (0.985, "right", f"{format_number(value)} ◇ →")
                if right
                else (0.015, "left", f"← ◇ {format_number(value)}")
            )
            axes.text(x, row - _ASIDE, text, ha=side, va="center", fontsize=8.5, transform=axes.get_yaxis_transform())
