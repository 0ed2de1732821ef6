"""Checks of published figures: that they are of arms, and of metrics that runs of those can have."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.config.formatting import join_words
from ablate.config.merging import Tree
from ablate.experiment.metrics import is_score, list_metrics, list_parts
from ablate.sweeps.spec.fields import SweepFields

logger = logging.getLogger(__name__)


def check_published(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the problems of the published figures: an arm that there is not, a metric that a run of such an arm does
    not report, and a size where there are none. A score on any downstream task is accepted, as `ablate evaluate` can
    measure it after training."""
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
    except ValidationError:  # which is told of on its own
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
            with contextlib.suppress(ConfigError):  # an experiment that is told of on its own
                known = list_metrics(sweep.base(arm))
                if missing := [m for m in list_parts(entry.metric) if m not in known and not _names_score(m)]:
                    unreported[i] = missing, known
    return unreported


def _names_score(metric: str) -> bool:
    """Return whether a metric has the form of a score, eval/TASK/NAME."""
    _, *rest = metric.split("/")
    return is_score(metric) and len(rest) > 1 and all(part.strip() for part in rest)
