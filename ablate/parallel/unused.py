"""Whether a step leaves a trained parameter without a gradient, seen on the meta device."""

from __future__ import annotations

import torch

from ablate.estimate.skeleton import build_skeleton
from ablate.experiment.tree import Experiment


def leaves_unused(experiment: Experiment, classes: int, shape: tuple[int, ...]) -> bool:
    """Return whether some trained parameter gets no gradient in a step; also true if a step cannot be computed without
    values, as for a placement that depends on them."""
    model = build_skeleton(experiment, classes, shape).train()
    task = experiment.task
    try:
        with torch.device("meta"):
            inputs, targets = task.build_batch(2, shape, classes)
            task.compute_loss(model, inputs, targets).backward()
    except Exception:  # of a plugin, or of an operation that the meta device does not have
        return True
    return any(p.grad is None for p in model.parameters() if p.requires_grad)
