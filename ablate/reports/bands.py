"""The course of an arm's fresh seeds: their mean over training, and the range that they lie in."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from ablate.config.formatting import format_count, format_number
from ablate.plots.figure import Axis, Entry, Figure, Panel, plot
from ablate.plots.marks import Band, Line, Mark
from ablate.reports.labels import label_metric
from ablate.reports.usage import UsageUnit
from ablate.sweeps.records import SweepRecord
from ablate.verdict.comparison import Compared
from ablate.verdict.outcomes import LOSS

MOST_ARMS = 12
"""Most arms in one figure; more lines cannot be told apart."""
LEAST_POINTS = 2
FEW = 30
"""Values of a line that are marked."""
_ABOVE = 1.05
"""The top of the axis, as a multiple of the trivial loss."""


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
    """Return arm -> its band, of those that were validated twice or more. For a grid with too many points for one
    figure, each arm at its best point; empty for too many arms."""
    shown = list(compared)
    if len(shown) > MOST_ARMS:
        shown = [cell for arm in record.spec.own_arms if (cell := record.pick_point(arm)) in compared]
    bands = {arm: collect_band(record, arm, compared[arm]) for arm in shown}
    drawn = {arm: band for arm, band in bands.items() if len(band) >= LEAST_POINTS}
    return drawn if len(drawn) <= MOST_ARMS else {}


def draw_bands(record: SweepRecord, compared: Mapping[str, Compared]) -> Figure | None:
    """Return the mean of each arm's fresh seeds against tokens or images, with the range of the seeds, and each seed
    that failed; None where there is no course of any arm, or there are too many arms for one figure."""
    bands = collect_bands(record, compared)
    if not bands:
        return None
    unit, objective, looks = UsageUnit.of(record), record.spec.objective, record.spec.looks
    marks: list[Mark] = []
    any_failed = False
    for arm, band in bands.items():
        colour, places = looks[arm][0], list(band)
        lows, means, highs = ([row[name] for row in band.values()] for name in ("low", "mean", "high"))
        titles = [
            f"{arm}, {format_count(place)} {unit.noun}: {format_number(row['mean'])}, seeds from "
            f"{format_number(row['low'])} to {format_number(row['high'])}"
            for place, row in band.items()
        ]
        marks.append(Band(places, lows, highs, colour))
        marks.append(Line(places, means, colour, 1.8, marker="." if len(places) <= FEW else "", titles=titles))
        for run in record.fresh(arm):
            outcome = compared[arm].outcomes.get(run.seed)
            course = {step: value for step, value in sorted(run.curve.items()) if math.isfinite(value)}
            if outcome and not outcome.trained and course:
                any_failed = True
                steps = [step * unit.per_update(run) for step in course]
                marks.append(Line(steps, [*course.values()], colour, 1, ":"))
    return plot(
        "bands",
        f"{record.title}: {objective.title} on fresh seeds, against {unit.noun}",
        Panel(
            marks,
            label_amount(unit.noun),
            Axis(label_metric(objective.metric, record.spec), limits=_choose_limits(record, bands)),
        ),
        subtitle="line: mean of the seeds that trained; shaded: from the lowest to the highest"
        + ("; dotted: seeds that failed" if any_failed else ""),
        caption=caption_bands(record, any_failed),
        entries=[Entry(arm, looks[arm][0]) for arm in bands],
    )


def caption_bands(record: SweepRecord, any_failed: bool) -> str:
    """Return the caption of `draw_bands`."""
    points = " Each arm at the point of the grid where fewest seeds failed and, of those, the mean is best."
    return (
        f"{record.spec.objective.title} on fresh seeds during training: the mean of the seeds of each arm that trained "
        "and, shaded, the range from the lowest to the highest."
        + (" Dotted: seeds that failed, which are in no mean." if any_failed else "")
        + (points if len(record.spec.cells) > MOST_ARMS else "")
    )


def label_amount(noun: str) -> Axis:
    """Return the axis of the amount of training."""
    titles = {"updates": "updates of the optimizer", "steps": "steps"}
    return Axis(titles.get(noun, f"{noun} trained on"), numbers="items")


def _choose_limits(record: SweepRecord, bands: Mapping[str, Mapping[int, Mapping[str, float]]]) -> tuple[float, float]:
    """Return the ends of the axis, which is cut above the trivial loss: how far above it a seed begins says little, and
    would flatten the rest."""
    low = min(row["low"] for band in bands.values() for row in band.values())
    high = max(row["high"] for band in bands.values() for row in band.values())
    trivial = record.trivial_loss
    if record.spec.objective.metric == LOSS and trivial is not None and math.isfinite(trivial):
        high = min(high, _ABOVE * trivial) if _ABOVE * trivial > low else high
    pad = 0.04 * (high - low) or 0.01
    return low - pad, high if high == _ABOVE * (trivial or 0) else high + pad
