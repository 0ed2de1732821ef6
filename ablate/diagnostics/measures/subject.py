"""The subject of a measurement: a model with its layers and its input data."""

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
    """int64, classes [batch] or token ids [batch, seq]; `IGNORED` at positions without a target."""
    there: Tensor | None = None
    """bool [batch, seq]: false at padding. None: no padding."""


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
        identity: equal for two subjects only if their measurements would be equal.
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
        """Return (summed cross-entropy in nats, number of correct predictions, number of targets) over all targets that
        are not ignored. A model's own loss, if it has one, avoids storing all logits; predictions are counted for
        classifiers only."""
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
    """Return a function (first, last + 1) -> these items of the concatenated `datasets`. Positions of a sequence after
    the input of its last target are padding. A prompt, which has no targets, is not padding.
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
    """Return the vectors [n, d] of a hidden state [batch, ..., d] without padding, or only the last vector of each
    item."""
    if which == "last":
        if batch.there is None or batch.there.shape != x.shape[:-1]:
            return x.flatten(1, -2)[:, -1]
        last = batch.there.long().cumsum(1).argmax(1)
        return x[torch.arange(len(x), device=x.device), last]
    if batch.there is None or batch.there.shape != x.shape[:-1]:
        return x.flatten(0, -2)
    return x[batch.there]
