"""The check for trained parameters that get no gradient in a step, on the meta device."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ablate.models import Model
from ablate.tasks import Task


class _Loss(nn.Module):
    """The loss of a model as a module, which can be called with other weights."""

    def __init__(self, model: Model, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, inputs: Any, targets: Any) -> Tensor:
        return self.task.compute_loss(self.model, inputs, targets)


def leaves_unused(model: Model, task: Task, classes: int, shape: tuple[int, ...]) -> bool:
    """Return whether some trained parameter of `model` gets no gradient in a step; also true if a step cannot be
    computed without values, as for a placement that depends on them. The model itself is not changed."""
    training, loss = model.training, _Loss(model, task)
    weights = {
        name: torch.empty_like(value, device="meta", requires_grad=value.requires_grad)
        for name, value in chain(loss.named_parameters(), loss.named_buffers())
    }
    try:
        model.train()
        with torch.device("meta"):
            batch = task.build_batch(2, shape, classes)
            functional_call(loss, weights, batch).backward()
    except Exception:  # of a plugin, or of an operation that the meta device does not have
        return True
    finally:
        model.train(training)
    return any(value.grad is None for value in weights.values() if value.requires_grad)
