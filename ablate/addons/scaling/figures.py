"""The figures of sizes: of a ladder, losses with the share of failed seeds, and differences, against size; of a
transfer, losses against the learning rate, a panel for each arm and a line for each size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ablate.addons.scaling.fits import Curve, Gap
from ablate.addons.scaling.ladder import Ladder
from ablate.addons.scaling.transfer import ArmTransfer, Transfer
from ablate.config.formatting import count_noun, format_count, format_number
from ablate.plots.figure import Axis, Figure, Panel, Part, list_entries, plot
from ablate.plots.marks import Band, Interval, Line, Mark, Points, Span, Text
from ablate.plots.style import SIZE, choose_looks
from ablate.reports.ranges import choose_range
from ablate.verdict.intervals import Estimate
from ablate.verdict.outcomes import LOSS
from ablate.verdict.statements import format_estimate

MOST_TIMES = 4
"""An interval that is so many times as wide as the median one does not set the range of the axis."""
APART = 0.025
"""Horizontal offset between arms at the same size, as a share of the decades on the axis."""


def draw_losses(ladder: Ladder) -> Figure:
    """Return the loss of each arm against size, with its curve, and below it the share of its seeds that failed."""
    seeds = count_noun(max(size.spec.confirm.most_seeds for size in ladder.sizes), "fresh seed")
    arms, sizes = ladder.compared.arms, _build_axis(ladder)
    looks, places = choose_looks(arms), _spread_arms(ladder, list(arms))
    losses: list[Mark] = []
    shares: list[Mark] = []
    for name, arm in arms.items():
        losses += _mark_sizes(ladder, name, arm.losses, arm.estimates, looks[name], places[name])
        losses += _mark_curve(ladder, arm.curve, looks[name][0])
        known = [(r.parameters * places[name], s) for r, s in zip(ladder.sizes, arm.failures, strict=True) if s]
        shares.append(Line([x for x, _ in known], [100 * s.failed / s.n for _, s in known], looks[name][0], 1))
        for x, share in known:
            ends, title = (100 * share.low, 100 * share.high), f"{name}: {share.describe()}"
            shares.append(Interval(x, 100 * share.failed / share.n, ends, *looks[name], upright=True, title=title))
    failed = Axis("seeds that failed (%)", limits=(-6, 106))
    panels = [Panel(losses, Axis(log=True, ticks=sizes.ticks), Axis(f"{LOSS} (nats)")), Panel(shares, sizes, failed)]
    return Figure(
        "ladder",
        f"{ladder.name}: {LOSS} against size",
        [Part(panels, 1, share="x", heights=[3, 1.2])],
        f"{seeds} per size; light: each that trained; strong: their mean with its 95 % interval{_name_curves(ladder)}",
        f"The {LOSS} of each arm at each size, and the share of its seeds that failed.",
        list_entries(looks),
        (SIZE[0], 1.35 * SIZE[1]),
    )


def draw_differences(ladder: Ladder) -> Figure:
    """Return the difference of each arm to the baseline against size, with that of the curves."""
    compared = ladder.compared
    looks, places = choose_looks(compared.arms), _spread_arms(ladder, list(compared.pairs))
    marks: list[Mark] = [Span(0, 0, upright=False, colour="black")]
    for name, pair in compared.pairs.items():
        means = [versus.difference for versus in pair.measured]
        marks += _mark_sizes(ladder, name, pair.differences, means, looks[name], places[name])
        marks += _mark_curve(ladder, pair.gap, looks[name][0])
    limits, words = _limit_height(ladder, places, {name: looks[name][0] for name in places})
    upwards = Axis(f"{LOSS} minus that of {ladder.baseline} (nats)", limits=limits)
    return plot(
        "ladder-differences",
        f"{ladder.name}: difference to {ladder.baseline} against size",
        Panel([*marks, *words], _build_axis(ladder), upwards),
        subtitle="below 0: better; light: each seed; bars: intervals of "
        f"{count_noun(compared.family, 'comparison')} that share 5 %{_name_curves(ladder)}",
        caption=f"The difference of each arm to {ladder.baseline} at each size, over the seeds on which both trained. "
        "An arrow: the interval extends beyond the axis.",
        entries=list_entries({name: looks[name] for name in compared.pairs}),
    )


def _spread_arms(ladder: Ladder, arms: Sequence[str]) -> dict[str, float]:
    """Return arm -> factor of the number of parameters at which it is drawn, so that no interval hides another."""
    decades = math.log10(ladder.sizes[-1].parameters / ladder.sizes[0].parameters)
    return {arm: 10 ** (APART * decades * (i - (len(arms) - 1) / 2)) for i, arm in enumerate(arms)}


def _build_axis(ladder: Ladder) -> Axis:
    places = [*((size.name, size.parameters) for size in ladder.sizes), *([ladder.target] if ladder.target else [])]
    ticks = {float(n): f"{size}\n{format_count(n)}" for size, n in places}
    return Axis("parameters of the layers", log=True, ticks=ticks)


def _name_curves(ladder: Ladder) -> str:
    has_curves = any(arm.curve for arm in ladder.compared.arms.values())
    return "; curves with their 95 % intervals" if has_curves else ""


def _limit_height(
    ladder: Ladder, places: Mapping[str, float], colours: Mapping[str, str]
) -> tuple[tuple[float, float], list[Mark]]:
    """Return the ends of the axis of the differences, and words on what lies beyond: the ends of intervals that are
    several times as wide as the others, which would flatten them, with the number of their seeds there."""
    known = {
        (arm, k): (versus.difference.interval, pair.differences[k].values())
        for arm, pair in ladder.compared.pairs.items()
        for k, versus in enumerate(pair.measured)
        if versus.difference and versus.difference.interval
    }
    widest = MOST_TIMES * float(np.median([high - low for (low, high), _ in known.values()] or [0.0]))
    shown = {key: one for key, one in known.items() if one[0][1] - one[0][0] <= widest}
    others = [v for arm, p in ladder.compared.pairs.items() for k, by_seed in enumerate(p.differences)
              if (arm, k) not in known or (arm, k) in shown for v in by_seed.values()]  # fmt: skip
    low, high = limits = choose_range(others, [ends for ends, _ in shown.values()], 0.0)
    words: list[Mark] = []
    for (arm, k), (ends, values) in known.items():
        x = ladder.sizes[k].parameters * places[arm]
        for edge, end, sign in ((high, ends[1], 1), (low, ends[0], -1)):
            if sign * end > sign * edge:
                count = sum(sign * value > sign * edge for value in values)
                text = f"to {end:+.2f}" + (f"; {count_noun(count, 'seed')}" if count else "")
                words.append(Text(x, edge, text, colours[arm], shift=(6, -7 * sign)))
    return limits, words


def _mark_sizes(
    ladder: Ladder,
    name: str,
    by_size: Sequence[Mapping[int, float]],
    estimates: Sequence[Estimate | None],
    look: tuple[str, str],
    place: float,
) -> list[Mark]:
    """Return a point for each seed, and the means with their intervals, at `place` times the parameters."""
    marks: list[Mark] = []
    for size, by_seed, one in zip(ladder.sizes, by_size, estimates, strict=True):
        x = size.parameters * place
        titles = [f"{name} at {size.name}, seed {seed}: {format_number(value)}" for seed, value in by_seed.items()]
        marks.append(Points([x] * len(by_seed), [*by_seed.values()], *look, size=4, alpha=0.35, titles=titles))
        if one:
            title = f"{name} at {size.name}: {format_estimate(one)} (n = {one.n})"
            marks.append(Interval(x, one.mean, one.interval, *look, upright=True, title=title))
    return marks


def _mark_curve(ladder: Ladder, fit: Curve | Gap | None, colour: str) -> list[Mark]:
    """Return a curve with its interval over its valid range, dashed beyond the trained sizes."""
    if fit is None:
        return []
    ends = [float(size.parameters) for size in ladder.sizes] + ([float(ladder.target[1])] if ladder.target else [])
    grid = {*np.geomspace(min(ends), max(ends), 60).tolist()[1:-1], *ends}
    along = {x: fit.at(x) for x in sorted(grid) if fit.reaches(x)}
    low, high = float(ladder.sizes[0].parameters), float(ladder.sizes[-1].parameters)
    marks: list[Mark] = []
    for first, last, dash in ((min(along), low, "--"), (low, high, "-"), (high, max(along), "--")):
        xs = [x for x in along if first <= x <= last]
        marks.append(Line(xs, [along[x].value for x in xs], colour, dash=dash))
    known = {x: (one.low, one.high) for x, one in along.items() if one.low is not None and one.high is not None}
    if fit.level and known:
        marks.append(Band([*known], [low for low, _ in known.values()], [high for _, high in known.values()], colour))
    return marks


def draw_transfer(transfer: Transfer) -> Figure:
    """Return the loss of each arm against the learning rate: a line for each size through the mean over the seeds, a
    dot for each seed, a star at the best rate, and a cross above rates at which some seed failed."""
    chain = transfer.chain
    looks, panels = choose_looks(size.name for size in chain.sizes), list[Panel]()
    for arm, one in transfer.arms.items():
        marks = [mark for k, size in enumerate(chain.sizes) for mark in _mark_size(one, k, looks[size.name])]
        panels.append(Panel(marks, Axis(chain.path, log=True), Axis("" if panels else "val/loss (nats)"), arm))
    return Figure(
        "transfer",
        f"{chain.name}: val/loss against {chain.path}, over {chain.axis}",
        [Part(panels)],
        caption="Lines: means over the seeds that trained; dots: seeds; star and bar: the best rate with its 95 % "
        "interval; crosses: rates at which a seed failed.",
        entries=list_entries(looks),
    )


def _mark_size(one: ArmTransfer, k: int, look: tuple[str, str]) -> list[Mark]:
    colour, marker = look
    curves = list(one.curves[k].values())
    if not curves:
        return []
    marks: list[Mark] = []
    means: dict[float, float] = {}
    for rate in curves[0]:
        losses = [loss for curve in curves if (loss := curve[rate]) is not None]
        marks.append(Points([rate] * len(losses), losses, colour, ".", 4, alpha=0.4))
        if losses:
            means[rate] = sum(losses) / len(losses)
        if len(losses) < len(curves):
            marks.append(Text(rate, 0.97, "x", colour, "center", of_axes="y"))
    marks.append(Line(list(means), list(means.values()), colour, 1.2, marker=marker, size=4))
    best = one.optima[k]
    if best.rate is not None and best.interval is not None:
        marks.append(Interval(best.rate, min(means.values()), best.interval, colour, "*", size=9))
    return marks
