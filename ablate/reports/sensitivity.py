"""Importance of the learning rate to an arm: the sensitivity of Wortsman et al. 2023
(arXiv 2309.14322), the mean over log learning rates in the searched range of min(loss, initial loss) - lowest loss.

A trial that got stuck has a loss, and the definition takes it as it is: it is not replaced by the initial one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ablate.config.formatting import is_number
from ablate.reports.figure_data import XY, compute_hull, find_last_value
from ablate.reports.labels import LEARNING_RATE
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FINISHED, Run

MINIMUM_RATES = 3  # finished trials below which none is given
METRIC = "val/loss"  # the objective that it is defined for


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
