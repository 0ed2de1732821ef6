"""Checks of the objective: that it has a direction, and that a run has it when it is read."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ablate.config.errors import Problem, did_you_mean
from ablate.config.formatting import join_words
from ablate.experiment.metrics import SCORES, describe_metric, is_score, list_parts
from ablate.experiment.tree import Experiment
from ablate.sweeps.spec.fields import SweepFields


def validate_objective(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the problems of the objective as it is written."""
    yield from list(_check_direction(sweep)) or _check_units(sweep)


def _check_direction(sweep: SweepFields) -> Iterator[Problem]:
    """Yield a problem if the worst value of a metric would win, or it is not known which is the worst."""
    objective, parts = sweep.objective, list_parts(sweep.objective.metric)
    known = {part: one.maximize for part in parts if (one := describe_metric(part))}
    more, less = ([part for part, maximize in known.items() if maximize is which] for which in (True, False))
    if more and less:
        text = (
            f"has no direction: more of {join_words(more)} is better, and less of {join_words(less)}. Take the mean of "
            "either, or compare one of them"
        )
        yield Problem("objective.metric", text, objective.metric)
    elif (unknown := [part for part in parts if is_score(part) and part not in known]) and not objective.is_directed:
        text = f"is required, as it is not known whether more of {join_words(unknown)} is better: minimize or maximize."
        yield Problem("objective.direction", text + did_you_mean(unknown[0].rpartition("/")[2], SCORES))
    elif more and objective.direction == "minimize":
        yield Problem("objective.direction", f"a higher {objective.metric} is better: remove this", "minimize")


def _check_units(sweep: SweepFields) -> Iterator[Problem]:
    """Yield a problem if a mean is of metrics without a common scale, so that the one with the largest numbers would
    decide alone. Metrics between two bounds, such as accuracies and F1, have one."""
    known = {part: one for part in list_parts(sweep.objective.metric) if (one := describe_metric(part))}
    units = {part: one.label or one.name for part, one in known.items()}
    if len({*units.values()}) > 1 and not all(math.isfinite(bound) for one in known.values() for bound in one.bounds):
        named = join_words(f"{part} ({unit})" for part, unit in units.items())
        text = f"is a mean of {named}: the one with the largest numbers decides alone. Take metrics of one unit"
        yield Problem("objective.metric", text, sweep.objective.metric)


def find_reading(experiment: Experiment) -> int | None:
    """Return every how many updates an objective with scores on downstream tasks is read: at validations that have
    them. None: after the last update alone."""
    interval, every, steps = (
        experiment.validation.interval,
        experiment.evaluation.every_n_steps,
        experiment.trainer.max_steps,
    )
    both = math.lcm(interval, every) if every else steps
    return both if both < steps else None


def describe_readings(sweep: SweepFields) -> str:
    """Return when an objective with scores on downstream tasks is read, as a line of a plan; '' for another one."""
    if not any(map(is_score, list_parts(sweep.objective.metric))):
        return ""
    every = find_reading(sweep.base(next(iter(sweep.all_arms))))
    if every:
        return f"objective  read every {every:,} updates, when both validation and scores are there"
    return "objective  read after the last update alone: evaluation.every_n_steps gives it a curve"


def check_readings(sweep: SweepFields) -> Iterator[Problem]:
    """Yield a problem if the objective has scores on downstream tasks that are never there at a validation before the
    last, though they are asked for, or a pruner needs them."""
    if not any(map(is_score, list_parts(sweep.objective.metric))):
        return
    for arm in sweep.all_arms:
        base = sweep.base(arm)
        interval, every, steps = base.validation.interval, base.evaluation.every_n_steps, base.trainer.max_steps
        if find_reading(base) or interval >= steps:
            continue
        if every:
            text = (
                f"an objective of scores is read at validations that have them: with scores every {every:,} updates "
                f"and validations every {interval:,} there is none before the last of {steps:,}. Set it to {interval}, "
                f"or trainer.val_check_interval to {every}"
            )
        elif sweep.pruner.stops_trials:
            text = (
                f"the pruner {sweep.pruner.kind} needs the objective before the end: set it to {interval}, the updates "
                "between two validations"
            )
        else:
            continue
        yield Problem("experiment.evaluation.every_n_steps", text, every)
        return
