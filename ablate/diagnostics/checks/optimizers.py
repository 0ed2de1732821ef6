"""Checks of optimizers, in a small language model and a small ViT."""

from __future__ import annotations

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
