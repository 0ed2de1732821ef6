"""What is measured: a model with its layers and the data that goes through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.data import IGNORED
from ablate.diagnostics.measures.layers import Layers
from ablate.models import Model


@dataclass(frozen=True)
class Batch:
    """Inputs [batch, ...] of a model, and what it should say of them."""

    inputs: Tensor
    targets: Tensor
    """int64, classes [batch] or token ids [batch, seq]; `IGNORED` where nothing is asked."""
    there: Tensor | None = None
    """bool [batch, seq]: false at padding. None: there is none."""


@dataclass(frozen=True)
class Subject:
    """A model in evaluation mode, and its data.

    Args:
        label: what it is called in tables and figures.
        layers: of the model.
        forward: inputs of a batch -> logits [..., classes].
        items: how many sequences or images there are.
        load: (first, last + 1) -> that part of them.
        per_item: tokens of a sequence; 1 for images.
        unit: "tokens" or "images".
        device: where the model is.
        identity: the same for two subjects only where they would be measured alike.
    """

    label: str
    layers: Layers
    forward: Callable[[Batch], Tensor]
    items: int
    load: Callable[[int, int], Batch]
    per_item: int
    unit: str
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    identity: str = ""

    def batch(self, first: int, last: int) -> Batch:
        """Items `first` to `last` - 1, on the device of the model."""
        batch = self.load(first, last)
        there = None if batch.there is None else batch.there.to(self.device)
        return Batch(batch.inputs.to(self.device), batch.targets.to(self.device), there)

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """(summed cross-entropy in nats, right first guesses, number of targets), over all targets but ignored ones.
        The model's own loss, where it has one, never holds all logits; only classifiers are asked for guesses."""
        count = (batch.targets != IGNORED).sum()
        if isinstance(model := self.layers.model, Model) and self.unit == "tokens":
            loss = model(batch.inputs, batch.targets).float() * batch.targets.numel()
            return loss, torch.zeros_like(count), count
        logits = self.forward(batch).float()
        loss = F.cross_entropy(logits.flatten(0, -2), batch.targets.flatten(), reduction="sum", ignore_index=IGNORED)
        right = (logits.argmax(-1) == batch.targets).sum() if self.unit == "images" else torch.zeros_like(count)
        return loss, right, count


def positions(x: Tensor, batch: Batch, which: str = "all") -> Tensor:
    """The vectors [n, d] of a hidden state [batch, ..., d] that count: those that are no padding, or of these the last
    of each item."""
    if which == "last":
        if batch.there is None or batch.there.shape != x.shape[:-1]:
            return x.flatten(1, -2)[:, -1]
        last = batch.there.long().cumsum(1).argmax(1)
        return x[torch.arange(len(x), device=x.device), last]
    if batch.there is None or batch.there.shape != x.shape[:-1]:
        return x.flatten(0, -2)
    return x[batch.there]
