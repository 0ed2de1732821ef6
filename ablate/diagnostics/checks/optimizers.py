"""Checks of optimizers, in a small language model and a small ViT, and of learning-rate schedules: factors on the
peak rate, and their course in a resumed run."""

from __future__ import annotations

import itertools
import math
from functools import partial

import torch

from ablate.diagnostics.checks.base import CheckFailedError, Settings, add_check
from ablate.diagnostics.checks.models import check_resumption, check_updates
from ablate.diagnostics.checks.subject import Subject, build_subject, step_by_closure

PART = "optimizer"


def _build(kind: str, settings: Settings) -> list[Subject]:
    families = ("llama", "vit")
    return [build_subject({"model.kind": family, "optimizer.kind": kind}, settings) for family in families]


@add_check(PART, "trained once")
def check_training(kind: str, settings: Settings) -> None:
    """Check that every trainable parameter is in one group, and moves."""
    for subject in _build(kind, settings):
        check_updates(subject)


@add_check(PART, "resume")
def check_resume(kind: str, settings: Settings) -> None:
    """Check that its state goes through a checkpoint: resumed updates equal uninterrupted ones."""
    for subject in _build(kind, settings):
        check_resumption(subject)


@add_check(PART, "learning rate")
def check_rate(kind: str, settings: Settings) -> None:
    """Check that an update depends on the learning rate."""
    for subject in _build(kind, {**settings, "optimizer.weight_decay": 0.0}):
        ends = []
        for factor in (1.0, 0.5):
            progress = subject.begin()
            for group in progress.optimizer.param_groups:
                group["lr"] = factor * group["lr"]
            batch = next(subject.iterate_batches(0))
            step_by_closure(progress.optimizer, partial(subject.compute_loss, progress.model, batch))
            ends.append([p.detach().clone() for p in progress.model.parameters()])
        if all(torch.equal(a, b) for a, b in zip(*ends, strict=True)):
            raise CheckFailedError("an update is the same at half the learning rate: group['lr'] is not used")


@add_check(PART, "learns")
def check_learning(kind: str, settings: Settings) -> str:
    """Check that it lowers the loss of one batch."""
    ends = []
    for subject in _build(kind, settings):
        progress, batch = subject.begin(), next(subject.iterate_batches(0))
        compute_loss = partial(subject.compute_loss, progress.model, batch)
        losses = [step_by_closure(progress.optimizer, compute_loss) for _ in range(8)]
        if not losses[-1] < losses[0]:
            raise CheckFailedError(f"eight updates on one batch take the loss from {losses[0]:.4g} to {losses[-1]:.4g}")
        ends.append(f"{losses[0]:.3g} to {losses[-1]:.3g}")
    return "loss " + ", ".join(ends)


SCHEDULE = "schedule"
_LENGTHS = (1, 2, 10, 1000)


@add_check(SCHEDULE, "factors")
def check_factors(kind: str, settings: Settings) -> str:
    """Check that the factors are from 0 to 1, rise in the warm-up and reach the peak."""
    schedule = build_subject({"schedule.kind": kind}, settings).experiment.schedule
    for steps in _LENGTHS:
        factors = [schedule.factor(step, steps) for step in range(steps + 1)]
        warmup = schedule.warmup(steps)
        for step, factor in enumerate(factors):
            if not (math.isfinite(factor) and 0 <= factor <= 1 + 1e-9):
                raise CheckFailedError(f"the factor of update {step + 1} of {steps} is {factor:g}, not from 0 to 1")
        if any(b < a for a, b in itertools.pairwise(factors[:warmup])):
            raise CheckFailedError(f"the factor falls during the warm-up of {warmup} of {steps} updates")
        if factors[-1] != factors[-2]:
            raise CheckFailedError(f"the factor after {steps} updates is not that of the last update")
    if max(factors) < 0.99:
        raise CheckFailedError(
            f"the peak rate is never reached: the largest factor of {steps} updates is {max(factors):g}"
        )
    return f"peak {max(factors):.3g}, last {factors[-1]:.3g} of {steps} updates"


@add_check(SCHEDULE, "resume")
def check_schedule_resume(kind: str, settings: Settings) -> None:
    """Check that resumed updates equal uninterrupted ones."""
    check_resumption(build_subject({"schedule.kind": kind}, settings))
