"""The metrics that a run reports, by name, and means of several: known without a model.

val/NAME is measured on the validation set, val/SET/NAME on a further one, eval/TASK/NAME is a score on a downstream
task, align/NAME belongs to an alignment. mean(A, B, ...) is the arithmetic mean of such metrics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from ablate.tasks import Metric, find_metric

SCORE = "eval/"
"""The prefix of scores on downstream tasks."""
OBJECTIVE = "objective"
"""The name of a mean in MLflow, whose names have no parentheses."""
_SHARE = (0.0, 1.0)
_PAIRS, _PROMPTS, _QUESTIONS = "share of pairs", "share of prompts", "share of questions"
ALIGNED = {
    f"align/{metric.name}": metric
    for metric in (
        Metric("accuracy", _PAIRS, maximize=True, bounds=_SHARE, counts_samples=True),
        Metric("win_rate", _PROMPTS, maximize=True, bounds=_SHARE, counts_samples=True),
        Metric("reward", "by the reward model", maximize=True),
        Metric("margin", "chosen minus rejected", maximize=True),
        Metric("kl", "nats per answer"),
    )
}
"""Metrics of an alignment."""
SCORES = {
    metric.name: metric
    for metric in (
        Metric("acc", _QUESTIONS, maximize=True, bounds=_SHARE, counts_samples=True),
        Metric("acc_norm", _QUESTIONS, maximize=True, bounds=_SHARE, counts_samples=True),
        Metric("acc_bytes", _QUESTIONS, maximize=True, bounds=_SHARE, counts_samples=True),
        Metric("acc_mutual_info", _QUESTIONS, maximize=True, bounds=_SHARE, counts_samples=True),
        Metric("exact_match", _QUESTIONS, maximize=True, bounds=_SHARE, counts_samples=True),
        Metric("f1", "F1", maximize=True, bounds=_SHARE),
        Metric("mcc", "Matthews correlation", maximize=True, bounds=(-1.0, 1.0)),
        Metric("perplexity", bounds=(1.0, math.inf)),
        Metric("word_perplexity", "per word", bounds=(1.0, math.inf)),
        Metric("byte_perplexity", "per byte", bounds=(1.0, math.inf)),
        Metric("bits_per_byte", "bits per byte of text", "bits per byte", bounds=(0.0, math.inf)),
        Metric("brier_score", bounds=(0.0, 2.0)),
    )
}
"""Scores of tasks of lm-evaluation-harness, under its names; of others the direction must be given."""
_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)
_LONGEST = 44  # letters of a mean that is written out in tables and figures


# ------------------------------------------------------------------ names


def parse_metric(text: str) -> str:
    """Return the name of a metric, of a mean as 'mean(A, B)'. Raises ValueError for another function, and for a mean of
    nothing, of one metric, of the same one twice, or of means."""
    if not {*text} & {*"(),"}:
        return text
    call = _CALL.fullmatch(text)
    if call is None:
        raise ValueError(f"{text!r} is not a metric: give a name, such as val/loss, or mean(A, B, ...)")
    function, inside = call.groups()
    if function != "mean":
        raise ValueError(f"unknown function {function}(...): the only one is mean(A, B, ...)")
    parts = [part.strip() for part in inside.split(",")]
    if {*inside} & {*"()"}:
        raise ValueError("a mean within a mean: list all metrics in one, mean(A, B, C)")
    if not any(parts):
        raise ValueError("mean() is of no metric: name two or more, mean(A, B)")
    if "" in parts:
        raise ValueError(f"a name is missing in mean({', '.join(parts)})")
    if len(parts) == 1:
        raise ValueError(f"a mean of one metric is that metric: write {parts[0]}")
    if twice := [part for part in dict.fromkeys(parts) if parts.count(part) > 1]:
        raise ValueError(f"a mean counts each metric once, and {', '.join(twice)} stands there several times")
    return f"mean({', '.join(parts)})"


def list_parts(metric: str) -> list[str]:
    """Return the metrics that a mean averages; for any other metric, itself."""
    call = _CALL.fullmatch(metric)
    return [part.strip() for part in call[2].split(",")] if call and call[1] == "mean" else [metric]


def is_score(metric: str) -> bool:
    """Return whether a metric, not a mean, is a score on a downstream task."""
    return metric.startswith(SCORE)


def shorten_metric(metric: str) -> str:
    """Return a metric as tables and figures name it: a long mean by the number of its parts."""
    parts = list_parts(metric)
    if len(metric) <= _LONGEST or len(parts) == 1:
        return metric
    return f"mean of {len(parts)} {'scores' if all(map(is_score, parts)) else 'metrics'}"


def name_in_mlflow(metric: str) -> str:
    """Return the name under which MLflow has a metric of a sweep's runs."""
    return metric if list_parts(metric) == [metric] else OBJECTIVE


# ------------------------------------------------------------------ values


def read_metric(values: Mapping[str, float], metric: str) -> float | None:
    """Return the value of a metric, for a mean the arithmetic mean of its parts, from the `values` of a validation;
    None if one of them was not measured there."""
    if metric in values:
        return values[metric]
    parts = [values.get(part) for part in list_parts(metric)]
    known = [part for part in parts if part is not None]
    return math.fsum(known) / len(known) if len(known) == len(parts) else None


def describe_metric(metric: str, task: str = "") -> Metric | None:
    """Return unit, direction and bounds of a metric by its name; for a mean what its parts have in common, and the
    means of their bounds. None if it, or a part of it, is unknown. `task`: the task of the metric, if several tasks
    have one of that name."""
    parts = list_parts(metric)
    found: list[Metric] = []
    for part in parts:
        own = SCORES.get(part.rpartition("/")[2]) if is_score(part) else ALIGNED.get(part) or find_metric(part, task)
        found += [own] if own else []
    if len(found) < len(parts):
        return None
    first, n = found[0], len(found)
    return (
        first
        if n == 1
        else Metric(
            metric,
            first.label if {one.label for one in found} == {first.label} else "",
            first.unit if {one.unit for one in found} == {first.unit} else "",
            all(one.maximize for one in found),
            (sum(one.bounds[0] for one in found) / n, sum(one.bounds[1] for one in found) / n),
            all(one.counts_samples for one in found),
        )
    )


def find_resolution(metric: str, items: Mapping[str, int], validation_items: int | None) -> float:
    """Return the step of a metric that counts N items, 1/N; 0 if it does not count, or N is unknown.

    The mean of k such metrics is rounded by each of them independently: its step is that of one with the same variance
    of rounding, sqrt(sum of 1/N^2) / k.

    Args:
        metric: its name.
        items: the number of items of scores, by their names.
        validation_items: of all other metrics.
    """
    parts = list_parts(metric)
    counts = [items.get(part) if is_score(part) else validation_items for part in parts]
    counting = [(one := describe_metric(part)) is not None and one.counts_samples for part in parts]
    steps = [1 / count if count and counts_them else 0.0 for count, counts_them in zip(counts, counting, strict=True)]
    return math.hypot(*steps) / len(parts)
