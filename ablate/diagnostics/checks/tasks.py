"""Checks of tasks: losses and metrics must not depend on how samples are cut into batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torchmetrics import MetricCollection

from ablate.data import data_kinds
from ablate.diagnostics.checks.base import CheckFailedError, CheckSkippedError, Settings, add_check
from ablate.diagnostics.checks.models import check_resumption
from ablate.diagnostics.checks.subject import Subject, build_first, check_gradients
from ablate.models import Model, list_families

PART = "task"
_SIZE, _CUTS = 7, (0, 1, 4, 7)  # samples of a batch, and where it is cut into batches of 1, 3 and 3


def _build(kind: str, settings: Settings) -> Subject:
    """Return a subject of the first family and kind of data that the task takes."""
    candidates = (
        {"model.kind": family, "task.kind": kind, **data}
        for family in list_families()
        for data in ({}, *({"data.kind": data} for data in data_kinds))
    )
    hint = "no family and kind of data goes with it by default. Add settings, such as data=..."
    return build_first(candidates, settings, hint)


def _cut(batch: tuple[Any, Any]) -> list[tuple[Any, Any]]:
    """Return the parts of a batch."""
    parts = [slice(first, end) for first, end in itertools.pairwise(_CUTS)]
    return [pytree.tree_map(lambda tensor, part=part: tensor[part], batch) for part in parts]


@add_check(PART, "loss is a mean")
def check_mean(kind: str, settings: Settings) -> None:
    """Check that the loss of a batch is the mean of its parts' losses, weighed by their positions."""
    subject = _build(kind, settings)
    task, model = subject.experiment.task, subject.build_model(torch.float64).eval()
    batch = subject.read_batch(_SIZE, dtype=torch.float64)

    def add(batch: tuple[Any, Any], seed: int = 3) -> float:
        torch.manual_seed(seed)
        return float(subject.compute_loss(model, batch).detach()) * task.count_positions(*batch)

    if add(batch) != add(batch, seed=4):
        raise CheckSkippedError("the training loss draws random numbers")
    whole, parts = add(batch), sum(map(add, _cut(batch)))
    if abs(whole - parts) > 1e-6 * max(1.0, abs(whole)):
        raise CheckFailedError(f"the summed loss of a batch is {whole:.8g}, that of its parts {parts:.8g}")


@dataclass
class _Validation:
    """The sums over some batches of a validation."""

    metrics: MetricCollection | None
    total: float = 0.0
    count: float = 0.0

    def compute(self, subject: Subject) -> dict[str, float]:
        """Return metric -> value."""
        mean = self.total / self.count
        return {
            "loss": mean,
            **subject.experiment.task.compute_metrics(mean, self.metrics, subject.corpus.bytes_per_token),
        }


def _validate(subject: Subject, model: Model, batches: Iterable[tuple[Any, Any]]) -> _Validation:
    """Return the validation of `model` on some batches."""
    task = subject.experiment.task
    validation = _Validation(task.build_metrics(subject.corpus))
    with torch.no_grad():
        for inputs, targets in batches:
            torch.manual_seed(3)
            loss = task.validate_batch(model, inputs, targets, validation.metrics)
            validation.total += float(loss) * task.count_positions(inputs, targets)
            validation.count += float(task.count_targets(inputs, targets))
    return validation


def _compare(whole: Mapping[str, float], parts: Mapping[str, float], how: str) -> None:
    """Raise CheckFailedError unless the metrics are the same."""
    for name in whole:
        if abs(whole[name] - parts[name]) > 1e-4 * max(1.0, abs(whole[name])):
            raise CheckFailedError(f"val/{name} is {whole[name]:.6g} over one batch and {parts[name]:.6g} over {how}")


@add_check(PART, "metrics over batches")
def check_metrics(kind: str, settings: Settings) -> str:
    """Check that the metrics of a validation do not depend on how it is cut into batches."""
    subject = _build(kind, settings)
    model, batch = subject.build_model().eval(), subject.read_batch(_SIZE)
    whole = _validate(subject, model, [batch]).compute(subject)
    _compare(whole, _validate(subject, model, _cut(batch)).compute(subject), "three")
    unknown = whole.keys() - {metric.name for metric in subject.experiment.task.metrics}
    if unknown:
        raise CheckFailedError(f"reports {', '.join(sorted(unknown))}, which its metrics do not name")
    return ", ".join(f"val/{name} {value:.3g}" for name, value in whole.items())


@add_check(PART, "metrics over ranks")
def check_ranks(kind: str, settings: Settings) -> None:
    """Check that the metrics do not depend on which rank has seen which batch: states of three ranks, merged."""
    subject = _build(kind, settings)
    model, batch = subject.build_model().eval(), subject.read_batch(_SIZE)
    whole = _validate(subject, model, [batch])
    first, *others = (_validate(subject, model, [part]) for part in _cut(batch))
    if first.metrics is None:
        raise CheckSkippedError("it has no metrics besides the loss")
    for other in others:
        assert other.metrics is not None
        first.total, first.count = first.total + other.total, first.count + other.count
        for name, metric in first.metrics.items(keep_base=True):
            metric.merge_state(other.metrics[str(name)])
    _compare(whole.compute(subject), first.compute(subject), "three ranks")


@add_check(PART, "objective")
def check_objective(kind: str, settings: Settings) -> None:
    """Check that a sweep without an objective compares a metric that is reported."""
    task = _build(kind, settings).experiment.task
    names = [f"val/{metric.name}" for metric in task.metrics]
    if task.objective not in names:
        raise CheckFailedError(f"its objective {task.objective} is not one of its metrics: {', '.join(names)}")
    if names[:1] != ["val/loss"]:
        raise CheckFailedError("the first of its metrics must be the loss")


@add_check(PART, "planned batch")
def check_batch(kind: str, settings: Settings) -> None:
    """Check that the batch that a plan traces is built like those of training."""
    subject = _build(kind, settings)
    corpus = subject.corpus
    planned = subject.experiment.task.build_batch(_SIZE, corpus.shape, corpus.classes)
    for what, ours, real in zip(("inputs", "targets"), planned, subject.read_batch(_SIZE), strict=True):
        kinds = [[(leaf.dtype, leaf.ndim) for leaf in pytree.tree_leaves(tree)] for tree in (ours, real)]
        if kinds[0] != kinds[1]:
            raise CheckFailedError(
                f"build_batch makes {what} {kinds[0]} (type, dimensions), and the data has {kinds[1]}"
            )


@add_check(PART, "gradients")
def check_gradient(kind: str, settings: Settings) -> None:
    """Check that every trainable parameter learns from the loss."""
    subject = _build(kind, settings)
    model = subject.build_model()
    check_gradients(model, subject.compute_loss(model, subject.read_batch()))


@add_check(PART, "resume")
def check_resume(kind: str, settings: Settings) -> None:
    """Check that resumed updates equal uninterrupted ones."""
    check_resumption(_build(kind, settings))


@add_check(PART, "trivial baseline")
def check_baseline(kind: str, settings: Settings) -> str:
    """Say what loss counts as not having learned."""
    subject = _build(kind, settings)
    loss = subject.experiment.task.measure_trivial_loss(subject.corpus, subject.experiment.model)
    return "none: a seed that does not learn goes unnoticed" if loss is None else f"val/loss {loss:.4g}"
