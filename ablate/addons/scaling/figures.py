"""The figures of a ladder: losses with the share of failed seeds, and differences, against size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ablate.addons.scaling.fits import Curve, Gap
from ablate.addons.scaling.ladder import Ladder
from ablate.config.formatting import count_noun, format_count
from ablate.plots import style
from ablate.verdict.intervals import Estimate
from ablate.verdict.outcomes import LOSS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_TIMES = 4
"""An interval that is so many times as wide as the median one does not set the range of the axis."""
APART = 0.025
"""Horizontal offset between arms at the same size, as a share of the decades on the axis."""


def draw_losses(ladder: Ladder) -> Figure:
    """Return the loss of each arm against size, with its curve, and below it the share of its seeds that failed."""
    seeds = count_noun(max(rung.spec.confirm.most_seeds for rung in ladder.rungs), "fresh seed")
    figure, axes = style.create_canvas(
        f"{ladder.name}: {LOSS} against size",
        f"{seeds} per size; light: each that trained; strong: their mean with its 95 % interval{_name_curves(ladder)}",
    )
    figure.set_size_inches(style.SIZE[0], 1.35 * style.SIZE[1])
    grid = figure.add_gridspec(2, 1, height_ratios=(3, 1.2))
    axes.set_subplotspec(grid[0])
    below = figure.add_subplot(grid[1], sharex=axes)
    axes.set_ylabel(f"{LOSS} (nats)")
    looks = style.choose_looks(ladder.compared.arms)
    places = _spread_arms(ladder, list(ladder.compared.arms))
    for name, arm in ladder.compared.arms.items():
        _draw_seeds(axes, ladder, arm.losses, looks[name], places[name])
        _draw_means(axes, ladder, arm.estimates, looks[name], places[name])
        _draw_curve(axes, ladder, arm.curve, looks[name])
    _draw_failures(below, ladder, looks)
    _set_sizes(below, ladder)
    axes.tick_params(labelbottom=False)
    style.add_legend(figure, [style.create_entry(looks[arm], arm) for arm in ladder.compared.arms])
    return figure


def draw_differences(ladder: Ladder) -> Figure:
    """Return the difference of each arm to the baseline against size, with that of the curves."""
    compared = ladder.compared
    figure, axes = style.create_canvas(
        f"{ladder.name}: difference to {style.escape_math(ladder.baseline)} against size",
        f"below 0: better; light: each seed; bars: intervals of {count_noun(compared.family, 'comparison')} that share "
        f"5 %{_name_curves(ladder)}",
    )
    axes.set_ylabel(f"{LOSS} minus that of {style.escape_math(ladder.baseline)} (nats)")
    axes.axhline(0, color="black", linewidth=0.8)
    looks = style.choose_looks(compared.arms)
    places = _spread_arms(ladder, list(compared.pairs))
    for name, pair in compared.pairs.items():
        _draw_seeds(axes, ladder, pair.differences, looks[name], places[name])
        _draw_means(axes, ladder, [versus.difference for versus in pair.measured], looks[name], places[name])
        _draw_curve(axes, ladder, pair.gap, looks[name])
    _set_sizes(axes, ladder)
    _limit_height(axes, ladder, places, looks)
    style.add_legend(figure, [style.create_entry(looks[arm], arm) for arm in compared.pairs])
    return figure


def _draw_failures(axes: Axes, ladder: Ladder, looks: style.Looks) -> None:
    """Draw the share of each arm's seeds that failed at each size, with its exact interval."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_ylabel("seeds that\nfailed (%)")
    axes.set_ylim(-6, 106)
    places = _spread_arms(ladder, list(ladder.compared.arms))
    for name, arm in ladder.compared.arms.items():
        colour, marker = looks[name]
        there = [(rung, s) for rung, s in zip(ladder.rungs, arm.failures, strict=True) if s]
        if not there:
            continue
        x = [rung.parameters * places[name] for rung, _ in there]
        y = [100 * s.failed / s.n for _, s in there]
        ends = [[value - 100 * s.low for value, (_, s) in zip(y, there, strict=True)],
                [100 * s.high - value for value, (_, s) in zip(y, there, strict=True)]]  # fmt: skip
        axes.errorbar(x, y, ends, color=colour, marker=marker, markersize=5, linewidth=1, capsize=3, elinewidth=0.8)


def _spread_arms(ladder: Ladder, arms: Sequence[str]) -> dict[str, float]:
    """Return arm -> factor of the number of parameters at which it is drawn, so that no interval hides another."""
    decades = float(np.log10(ladder.rungs[-1].parameters / ladder.rungs[0].parameters))
    return {arm: 10 ** (APART * decades * (i - (len(arms) - 1) / 2)) for i, arm in enumerate(arms)}


def _set_sizes(axes: Axes, ladder: Ladder) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("parameters of the layers")
    places = [*((rung.size, rung.parameters) for rung in ladder.rungs), *([ladder.target] if ladder.target else [])]
    axes.set_xticks([n for _, n in places], [f"{size}\n{format_count(n)}" for size, n in places])
    axes.minorticks_off()


def _name_curves(ladder: Ladder) -> str:
    has_curves = any(arm.curve for arm in ladder.compared.arms.values())
    return "; curves with their 95 % intervals" if has_curves else ""


def _draw_seeds(
    axes: Axes, ladder: Ladder, by_size: Sequence[Mapping[int, float]], look: tuple[str, str], place: float
) -> None:
    """Draw a point for each seed."""
    colour, marker = look
    for rung, by_seed in zip(ladder.rungs, by_size, strict=True):
        values, x = list(by_seed.values()), rung.parameters * place
        axes.plot([x] * len(values), values, marker, color=colour, alpha=0.35, markersize=4, zorder=2)


def _draw_means(
    axes: Axes, ladder: Ladder, estimates: Sequence[Estimate | None], look: tuple[str, str], place: float
) -> None:
    """Draw the means with their intervals."""
    colour, marker = look
    for rung, one in zip(ladder.rungs, estimates, strict=True):
        if one:
            x = rung.parameters * place
            axes.errorbar(x, one.mean, one.half_width, fmt=marker, color=colour, markersize=6, capsize=3, zorder=3)


def _limit_height(axes: Axes, ladder: Ladder, places: Mapping[str, float], looks: style.Looks) -> None:
    """Leave intervals out of the range of the axis that are several times as wide as the others, and write beside them
    where they end and how many seeds lie beyond it."""
    known = [
        (arm, k, versus.difference)
        for arm, pair in ladder.compared.pairs.items()
        for k, versus in enumerate(pair.measured)
        if versus.difference and versus.difference.interval
    ]
    widths = [one.half_width for _, _, one in known if one.half_width is not None]
    limit = MOST_TIMES * float(np.median(widths)) if widths else 0.0
    wide = [(arm, k) for arm, k, one in known if one.half_width is not None and one.half_width > limit]
    ends = [end for arm, k, one in known if one.interval and (arm, k) not in wide for end in one.interval]
    if not wide or not ends:
        return
    seeds = [
        value
        for arm, pair in ladder.compared.pairs.items()
        for k, by_seed in enumerate(pair.differences)
        if (arm, k) not in wide
        for value in by_seed.values()
    ]
    low, high = min(*ends, *seeds, 0.0), max(*ends, *seeds, 0.0)
    pad = 0.12 * (high - low)
    axes.set_ylim(low - pad, high + pad)
    for arm, k, one in known:
        if (arm, k) not in wide or not one.interval:
            continue
        values, x = ladder.compared.pairs[arm].differences[k].values(), ladder.rungs[k].parameters * places[arm]
        for edge, end, up in ((high + pad, one.interval[1], True), (low - pad, one.interval[0], False)):
            if low - pad <= end <= high + pad:
                continue
            count = sum(value > edge if up else value < edge for value in values)
            text = f"{'↑' if up else '↓'} to {end:+.2f}" + (f"; {count_noun(count, 'seed')}" if count else "")
            axes.annotate(
                text, (x, edge), (5, -10 if up else 4), textcoords="offset points", fontsize=8, color=looks[arm][0]
            )


def _draw_curve(axes: Any, ladder: Ladder, fit: Curve | Gap | None, look: tuple[str, str]) -> None:
    """Draw a curve with its interval over its valid range, dashed beyond the trained sizes."""
    if fit is None:
        return
    ends = [float(rung.parameters) for rung in ladder.rungs] + ([float(ladder.target[1])] if ladder.target else [])
    grid = {*np.geomspace(min(ends), max(ends), 60).tolist()[1:-1], *ends}
    xs = sorted(x for x in grid if fit.reaches(x))
    along = [fit.at(x) for x in xs]
    low, high = float(ladder.rungs[0].parameters), float(ladder.rungs[-1].parameters)
    for part in ((xs[0], low), (low, high), (high, xs[-1])):
        inside = [k for k, x in enumerate(xs) if part[0] <= x <= part[1]]
        trained = part == (low, high)
        axes.plot(
            [xs[k] for k in inside], [along[k].value for k in inside],
            color=look[0], linewidth=1.3, linestyle="-" if trained else "--", zorder=2,
        )  # fmt: skip
    if fit.level:
        axes.fill_between(xs, [i.low for i in along], [i.high for i in along], color=look[0], alpha=0.15, linewidth=0)
