"""The training loss of each task, without Lightning: a run minimises it, and `ablate plan` traces it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Model, inputs and targets of a batch -> the mean cross-entropy in nats, float32."""


def predict_tokens(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Return the next-token loss, which a language model computes itself, in chunks if there are many tokens."""
    loss: Tensor = model(tokens, targets)
    return loss


def classify(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy with classes [batch] or class probabilities [batch, classes]."""
    return F.cross_entropy(model(images).float(), targets)


LOSSES: dict[str, Loss] = {"language_modeling": predict_tokens, "image_classification": classify}
"""Task -> its training loss."""


def build_batch(task: str, size: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return uninitialised inputs and targets of a task; `shape` is the shape of one input."""
    if task == "language_modeling":
        return torch.empty((size, *shape), dtype=torch.int64), torch.empty((size, *shape), dtype=torch.int64)
    return torch.empty((size, *shape)), torch.empty(size, dtype=torch.int64)
