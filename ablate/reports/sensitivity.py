"""Importance of the learning rate to an arm: the sensitivity of Wortsman et al. 2023
(arXiv 2309.14322), the mean over log learning rates in the searched range of min(loss, initial loss) - lowest loss.

A trial that got stuck has a loss, and the definition takes it as it is: it is not replaced by the initial one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ablate.config.formatting import format_setting, is_number, join_words
from ablate.reports.labels import LEARNING_RATE
from ablate.reports.section import Column, Section, Table, words
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FINISHED, Run

XY = tuple[float, float]
MINIMUM_RATES = 3  # finished trials below which none is given
METRIC = "val/loss"  # the objective that it is defined for

TITLE = "Learning-rate sensitivity (Wortsman et al. 2023)"
MEANING = (
    "The mean, over log learning rates in the searched range, of the loss (at most the initial loss) minus the "
    "lowest loss, in the unit of the loss: a lower value means that less tuning is needed."
)


@dataclass(frozen=True)
class Sensitivity:
    """The learning-rate sensitivity of an arm."""

    value: float | None
    """In nats; a lower value means that a badly chosen learning rate costs less. None if no trial trained: the losses
    of failures are alike whatever the learning rate."""
    n: int
    """Number of finished trials behind it."""
    low: float
    high: float
    """The searched range."""
    diverged: int
    """Number of trials that count with the initial loss."""
    stuck: int
    """Number of trials that ran to their end without learning; they count with their own loss."""
    pruned: int
    """Number of trials that count with the last loss before they were pruned."""
    envelope: bool
    """Whether it is computed from the lower convex hull of the trials, since more than the learning rate was
    searched."""


def compute_sensitivity(record: SweepRecord, arm: str) -> Sensitivity | None:
    """Return the sensitivity of `arm`, without a value if none of its trials trained; None if the objective is not the
    loss, the loss of guessing is unknown, or fewer than 3 trials with different learning rates are finished."""
    rates, cap = record.spec.corners(arm).get(LEARNING_RATE, []), record.initial_loss
    numbers = [float(rate) for rate in rates if is_number(rate) and rate > 0]
    if record.spec.objective.metric != METRIC or cap is None or len(numbers) < len(rates) or len(set(numbers)) < 2:
        return None
    low, high = min(numbers), max(numbers)
    trials = [t for t in record.search(arm) if t.status in FINISHED and is_number(t.params.get(LEARNING_RATE))]
    points = [
        (float(t.params[LEARNING_RATE]), cap_loss(_read_loss(t), cap)) for t in trials if t.params[LEARNING_RATE] > 0
    ]
    if len(points) < MINIMUM_RATES or len({x for x, _ in points}) < 2:
        return None
    envelope = len(record.spec.space(arm)) > 1
    outcomes = [outcome for t in trials if (outcome := record.runs.find_outcome(t))]
    return Sensitivity(
        compute_mean_excess(points, low, high, envelope) if any(one.trained for one in outcomes) else None,
        len(points),
        low,
        high,
        sum(one.ending == "diverged" for one in outcomes),
        sum(one.ending == "stuck" for one in outcomes),
        sum(t.status == "pruned" for t in trials),
        envelope,
    )


def compute_mean_excess(points: Sequence[XY], low: float, high: float, envelope: bool = False) -> float:
    """The mean of loss - lowest loss over log(x) from `low` to `high`.

    `points` are (x, loss), joined by straight lines in log(x) and constant beyond the outermost; of several at one x
    the lowest counts. `envelope`: their lower convex hull instead.
    """
    lowest: dict[float, float] = {}
    for x, y in ((math.log(x), y) for x, y in points):
        lowest[x] = min(y, lowest.get(x, y))
    line = compute_hull(list(lowest.items()), 1, log=False) if envelope else sorted(lowest.items())
    xs, ys = zip(*line, strict=True)
    a, b = math.log(low), math.log(high)
    knots = np.array([a, *(x for x in xs if a < x < b), b])
    heights = np.interp(knots, xs, ys)
    area = float(np.sum(np.diff(knots) * (heights[1:] + heights[:-1]) / 2))
    return area / (b - a) - float(heights.min())


def cap_loss(loss: float | None, cap: float) -> float:
    """Return the loss that counts: at most that of guessing, `cap`, which a diverged trial (None) counts with."""
    return cap if loss is None else min(loss, cap)


def _read_loss(trial: Run) -> float | None:
    if trial.status == "diverged":
        return None
    return find_last_value(trial) if trial.status == "pruned" else trial.value


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


# ---------------------------------------------------------------------------------------------------- section


def tabulate_sensitivities(known: Mapping[str, Sensitivity | None]) -> list[Section]:
    """Return the learning-rate sensitivity of each arm; nothing if it is unknown for all."""
    if not any(known.values()):
        return []
    rows = known.values()
    counts = {"n trials": "n", "diverged": "diverged", "stuck": "stuck", "pruned": "pruned"}
    columns = [
        words("arm", known),
        Column("sensitivity", [s and s.value for s in rows]),
        *(Column(title, [s and getattr(s, name) for s in rows]) for title, name in counts.items()),
        Column("range", [s and f"{format_setting(s.low)} to {format_setting(s.high)}" for s in rows]),
    ]
    return [Section(TITLE, Table(columns), list(_describe_sensitivities(known)))]


def _describe_sensitivities(sensitivities: Mapping[str, Sensitivity | None]) -> Iterable[str]:
    known = {arm: s for arm, s in sensitivities.items() if s}
    if any(s.value is not None for s in known.values()):
        yield MEANING
    if failed := [arm for arm, s in known.items() if s.value is None]:
        yield f"None for {join_words(failed)}: none of the trials trained, and then the losses say nothing of tuning."
    if any(s.diverged or s.pruned for s in known.values()):
        yield "A diverged trial counts with the initial loss, a pruned trial with its last reported loss."
    if any(s.stuck for s in known.values()):
        yield "A stuck trial, which ended without having learned, counts with its own loss."
    if hulls := [arm for arm, s in known.items() if s.envelope]:
        yield (
            f"For {join_words(hulls)}, which search more parameters, it is computed from the lower convex hull of the "
            "trials."
        )
    if len({(s.low, s.high) for s in known.values()}) > 1:
        yield "The ranges differ, so that these values cannot be compared."
    if none := [arm for arm, s in sensitivities.items() if not s]:
        yield f"None for {join_words(none)}: it needs {MINIMUM_RATES} finished trials at positive learning rates."
