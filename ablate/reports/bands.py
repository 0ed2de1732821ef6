"""The course of an arm's fresh seeds: their mean over training, and the range that they lie in."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ablate.plots import style
from ablate.reports.labels import choose_looks, label_metric
from ablate.reports.usage import UsageUnit
from ablate.sweeps.records import SweepRecord
from ablate.verdict.outcomes import LOSS
from ablate.verdict.records import Compared

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ARMS = 12
"""In one figure; more lines cannot be told apart."""
LEAST_POINTS = 2
_ABOVE = 1.05
"""Of the trivial loss: the top of the axis."""


def collect_band(record: SweepRecord, arm: str, compared: Compared) -> dict[int, dict[str, float]]:
    """Return tokens or images -> the mean, the lowest and the highest objective of an arm's fresh seeds up to the last
    look, over those that trained, where all of them were validated; empty before the first look."""
    if compared.looks is None:
        return {}
    unit, seeds = UsageUnit.of(record), list(compared.outcomes)[: compared.looks.sizes[-1]]
    curves = [
        {step * unit.per_update(run): value for step, value in run.curve.items() if math.isfinite(value)}
        for run in record.fresh(arm)
        if run.seed in seeds and compared.outcomes[run.seed].trained
    ]
    steps = set.intersection(*map(set, curves)) if curves else set()
    values = {step: [curve[step] for curve in curves] for step in sorted(steps)}
    return {step: {"mean": statistics.fmean(row), "low": min(row), "high": max(row)} for step, row in values.items()}


def collect_bands(record: SweepRecord, compared: Mapping[str, Compared]) -> dict[str, dict[int, dict[str, float]]]:
    """Return arm -> its band, of those that were validated twice or more. Of a grid with too many points for one
    figure, each arm at its best point; empty for too many arms."""
    shown = list(compared)
    if len(shown) > MOST_ARMS:
        shown = [cell for arm in record.spec.own_arms if (cell := record.pick_point(arm)) in compared]
    bands = {arm: collect_band(record, arm, compared[arm]) for arm in shown}
    drawn = {arm: band for arm, band in bands.items() if len(band) >= LEAST_POINTS}
    return drawn if len(drawn) <= MOST_ARMS else {}


def caption_bands(record: SweepRecord) -> str:
    """Return the caption of `draw_bands`."""
    points = " Each arm at the point of the grid where fewest seeds failed and, of those, the mean is best."
    return (
        f"{record.spec.objective.title} on fresh seeds during training: the mean of the seeds of each arm that trained "
        "and, shaded, the range from the lowest to the highest. Failed seeds are left out."
        + (points if len(record.spec.cells) > MOST_ARMS else "")
    )


def draw_bands(record: SweepRecord, bands: Mapping[str, Mapping[int, Mapping[str, float]]]) -> Figure:
    """Return the mean of each arm's fresh seeds against tokens or images, with the range of the seeds."""
    from matplotlib.ticker import EngFormatter

    noun, objective, looks = UsageUnit.of(record).noun, record.spec.objective, choose_looks(record)
    figure, axes = style.create_canvas(
        f"{record.title}: {objective.title} on fresh seeds, against {noun}",
        "line: mean of the seeds that trained; shaded: from the lowest to the highest",
    )
    axes.set_xlabel("updates of the optimizer" if noun == "updates" else f"{noun} trained on")
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.set_ylabel(label_metric(objective.metric, record.spec))
    for arm, band in bands.items():
        colour = looks[arm][0]
        places = list(band)
        lows, means, highs = ([row[name] for row in band.values()] for name in ("low", "mean", "high"))
        axes.fill_between(places, lows, highs, color=colour, alpha=0.18, linewidth=0)
        axes.plot(places, means, color=colour, linewidth=1.8)
    _cut_early(axes, record, bands)
    style.add_legend(figure, [style.create_entry(looks[arm], arm, linewidth=2) for arm in bands])
    return figure


def _cut_early(axes: Axes, record: SweepRecord, bands: Mapping[str, Mapping[int, Mapping[str, float]]]) -> None:
    """Cut the axis above the trivial loss: how far above it a seed begins says little, and would flatten the rest."""
    trivial = record.trivial_loss
    if record.spec.objective.metric != LOSS or trivial is None or not math.isfinite(trivial):
        return
    lowest = min(row["low"] for band in bands.values() for row in band.values())
    if axes.get_ylim()[1] > _ABOVE * trivial > lowest:
        axes.set_ylim(lowest - 0.04 * (_ABOVE * trivial - lowest), _ABOVE * trivial)
