"""Changes of the gradients before an update: clipping and scaling."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ablate.distributed import ranks


def clip(parameters: Iterable[nn.Parameter], most: float) -> None:
    """Scale the gradients so that the norm of all of them together is `most` at most."""
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    norm = ranks.norm([parameter.grad for parameter in trained])  # type: ignore[misc]
    for own in ranks.group_by_mesh(trained):
        torch.nn.utils.clip_grads_with_norm_(own, most, norm)


def weigh(positions: int, targets: Tensor) -> Tensor:
    """Return what a sum over all targets, divided by `positions`, is multiplied by to be the mean over `targets`, their
    number: 0 where there are none, since an update without targets has no loss and no gradient."""
    return torch.where(targets > 0, positions / targets, 0.0)


def scale(parameters: Iterable[nn.Parameter], factor: Tensor) -> None:
    """Multiply the gradients by `factor`."""
    for gradients in ranks.group_by_mesh(p.grad for p in parameters if p.grad is not None):
        torch._foreach_mul_(gradients, factor)
