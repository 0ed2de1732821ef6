"""Checks of the metrics of a sweep: that its objective has a direction and is there when it is read, and that published
figures are of arms and of metrics that runs of those report."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.config.formatting import join_words
from ablate.config.merging import Tree
from ablate.experiment.metrics import SCORES, describe_metric, is_score, list_parts
from ablate.experiment.tree import Experiment
from ablate.sweeps.spec.fields import SweepFields


def validate_objective(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the problems of the objective as it is written."""
    if not sweep.is_own and "metric" not in sweep.objective.model_fields_set:
        yield Problem("objective.metric", "is required: the name of the value that a run of this kind reports")
        return
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
    elif (
        unknown := [part for part in parts if (is_score(part) or not sweep.is_own) and part not in known]
    ) and not objective.is_directed:
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
    """Return the number of updates between two readings of an objective with scores on downstream tasks, which is read
    at validations that have them. None: only after the last update."""
    interval, every, steps = (
        experiment.validation.interval,
        experiment.evaluation.every_n_steps,
        experiment.trainer.max_steps,
    )
    both = math.lcm(interval, every) if every else steps
    return both if both < steps else None


def describe_readings(sweep: SweepFields) -> str:
    """Return when an objective with scores on downstream tasks is read, as a line of a plan; '' for any other
    objective."""
    if not sweep.is_own or not any(map(is_score, list_parts(sweep.objective.metric))):
        return ""
    every = find_reading(sweep.own_base(next(iter(sweep.all_arms))))
    if every:
        return f"objective  read every {every:,} updates, when both validation and scores are there"
    return "objective  read after the last update alone: evaluation.every_n_steps gives it a curve"


def check_readings(sweep: SweepFields) -> Iterator[Problem]:
    """Yield a problem if the objective has scores on downstream tasks that are never there at a validation before the
    last, though they are asked for, or a pruner needs them."""
    if not sweep.is_own or not any(map(is_score, list_parts(sweep.objective.metric))):
        return
    for arm in sweep.all_arms:
        base = sweep.own_base(arm)
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


logger = logging.getLogger(__name__)


def check_published(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the problems of the published figures: an unknown arm, a metric that a run of that arm does not report, and
    a size in a file without sizes. A score on any downstream task is accepted, as `ablate evaluate` can measure it
    after training."""
    for i, entry in enumerate(sweep.published):
        for arm in entry.values:
            if arm not in sweep.all_arms:
                text = f"{arm} is not an arm. Accepted: {', '.join(sweep.all_arms)}."
                yield Problem(f"published.{i}.values", text + did_you_mean(arm, sweep.all_arms))
        if entry.size is not None:
            yield Problem(f"published.{i}.size", "the file has no sizes: remove it", entry.size)
    for i, (missing, known) in _find_unreported(sweep).items():
        text = describe_unknown(sweep.published[i].metric, missing, known)
        if any(map(is_score, missing)):
            text += " A score on a downstream task is eval/TASK/NAME."
        yield Problem(f"published.{i}.metric", text, sweep.published[i].metric)


def describe_unknown(metric: str, missing: list[str], known: list[str]) -> str:
    """Return the message on a metric with the parts `missing`, which are not among the `known` ones of a run."""
    what = "unknown metric" if missing == [metric] else f"unknown metric {join_words(missing)}"
    return f"{what}. Accepted: {', '.join(known)}.{did_you_mean(missing[0], known)}"


def drop_unreported(cls: type[SweepFields], before: Mapping[str, Any], after: Tree) -> Tree:
    """Return the sweep `after`, which is `before` with settings of the command line, without the published figures
    whose metric only runs of `before` report: only the file can change figures, and other data or another task has
    other metrics."""
    if not before.get("published"):
        return after
    try:
        own, changed = (cls.model_validate({"name": "unnamed", **tree}).without_grid() for tree in (before, after))
    except ValidationError:  # reported separately
        return after
    lost = _find_unreported(changed).keys() - _find_unreported(own).keys()
    for i in sorted(lost):
        entry = changed.published[i]
        logger.warning(f"published: {entry.source} is left out: with these settings no run reports {entry.metric}")
    return {**after, "published": [entry for i, entry in enumerate(after["published"]) if i not in lost]}


def _find_unreported(sweep: SweepFields) -> dict[int, tuple[list[str], list[str]]]:
    """Return the number of each published entry whose metric a run of one of its arms does not report -> (the parts of
    the metric that are not reported, the metrics of such a run)."""
    unreported = {}
    for i, entry in enumerate(sweep.published):
        for arm in filter(entry.values.__contains__, sweep.all_arms):
            with contextlib.suppress(ConfigError):  # an invalid experiment, which is reported separately
                if (known := sweep.base(arm).metrics) is None:
                    continue
                if missing := [m for m in list_parts(entry.metric) if m not in known and not _names_score(m)]:
                    unreported[i] = missing, known
    return unreported


def _names_score(metric: str) -> bool:
    """Return whether a metric has the form of a score, eval/TASK/NAME."""
    _, *rest = metric.split("/")
    return is_score(metric) and len(rest) > 1 and all(part.strip() for part in rest)
