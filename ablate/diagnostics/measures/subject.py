"""The subject of a measurement: a model with its layers and the data that goes through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ablate.config.lazy import LazyModule
from ablate.data import IGNORED, BatchDataset
from ablate.diagnostics.measures.layers import Layers

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ablate.models import base as models
else:
    torch = LazyModule("torch")
    models = LazyModule("ablate.models.base")


@dataclass(frozen=True)
class Batch:
    """Inputs [batch, ...] of a model and its targets."""

    inputs: Tensor
    targets: Tensor
    """int64, classes [batch] or token ids [batch, seq]; `IGNORED` where there is no target."""
    there: Tensor | None = None
    """bool [batch, seq]: false at padding. None: there is none."""


@dataclass(frozen=True)
class Subject:
    """A model in evaluation mode, and its data.

    Args:
        label: its name in tables and figures.
        layers: of the model.
        forward: inputs of a batch -> logits [..., classes].
        items: number of sequences or images.
        load: (first, last + 1) -> these items.
        per_item: tokens of a sequence; 1 for images.
        unit: "tokens" or "images".
        device: of the model.
        identity: the same for two subjects only where their measurements would be the same.
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

    def load_batch(self, first: int, last: int) -> Batch:
        """Return items `first` to `last` - 1, on the device of the model."""
        batch = self.load(first, last)
        there = None if batch.there is None else batch.there.to(self.device)
        return Batch(batch.inputs.to(self.device), batch.targets.to(self.device), there)

    def compute_losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return (summed cross-entropy in nats, right first guesses, number of targets) over all targets that
        are not ignored. The model's own loss, where it has one, never holds all logits; guesses are those of
        classifiers alone."""
        count = (batch.targets != IGNORED).sum()
        if isinstance(model := self.layers.model, models.Model) and self.unit == "tokens":
            loss = model(batch.inputs, batch.targets).float() * batch.targets.numel()
            return loss, torch.zeros_like(count), count
        logits = self.forward(batch).float()
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, -2), batch.targets.flatten(), reduction="sum", ignore_index=IGNORED
        )
        right = (logits.argmax(-1) == batch.targets).sum() if self.unit == "images" else torch.zeros_like(count)
        return loss, right, count


def build_loader(datasets: Sequence[BatchDataset], unit: str) -> Callable[[int, int], Batch]:
    """Return a function (first, last + 1) -> these items of the `datasets`, one after another.

    Padded positions of sequences are those after the input of the last target. A prompt, which has no targets, is no
    padding.
    """

    def load(first: int, last: int) -> Batch:
        parts, before = [], 0
        for data in datasets:
            low, high = max(first - before, 0), min(last - before, len(data))
            if low < high:
                parts.append(data.__getitems__(range(low, high)))
            before += len(data)
        inputs, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        there = (targets != IGNORED).flip(1).cummax(1).values.flip(1) if unit == "tokens" else None
        return Batch(inputs, targets, None if there is None or bool(there.all()) else there)

    return load


def select_positions(x: Tensor, batch: Batch, which: str = "all") -> Tensor:
    """Return the vectors [n, d] of a hidden state [batch, ..., d] that are no padding, or the last of these of each
    item."""
    if which == "last":
        if batch.there is None or batch.there.shape != x.shape[:-1]:
            return x.flatten(1, -2)[:, -1]
        last = batch.there.long().cumsum(1).argmax(1)
        return x[torch.arange(len(x), device=x.device), last]
    if batch.there is None or batch.there.shape != x.shape[:-1]:
        return x.flatten(0, -2)
    return x[batch.there]
