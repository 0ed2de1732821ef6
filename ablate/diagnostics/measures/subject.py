"""The subject of a measurement: a model with its layers and its input data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ablate.config.lazy import pytree, torch
from ablate.data import IGNORED, BatchDataset
from ablate.diagnostics.measures.layers import Layers

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Inputs [batch, ...] of a model and its targets, each a tensor or a nested structure of tensors."""

    inputs: Any
    targets: Any
    """For a classifier or a language model int64, classes [batch] or token ids [batch, seq]; `IGNORED` where there is
    no target."""
    there: Tensor | None = None
    """bool [batch, seq]: false at padding. None: no padding."""

    def take(self, count: int) -> Batch:
        """Return the first `count` items."""
        inputs, targets = pytree.tree_map(lambda tensor: tensor[:count], (self.inputs, self.targets))
        return Batch(inputs, targets, None if self.there is None else self.there[:count])


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
        unit: what is counted: "tokens" or "images".
        classifies: whether each item has one class, so that first guesses can be right.
        sum_losses: a batch -> what `compute_losses` returns; by default that of logits.
        score: returns scores of the model, in its state at the call, on its own data, by name; None: it has none.
        task: the task of these scores, of `kinds.heads`.
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
    classifies: bool = False
    sum_losses: Callable[[Batch], tuple[Tensor, Tensor, Tensor]] | None = None
    score: Callable[[], Mapping[str, float]] | None = None
    task: str = ""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    identity: str = ""

    def load_batch(self, first: int, last: int) -> Batch:
        """Return items `first` to `last` - 1, on the device of the model."""
        batch = self.load(first, last)
        there = None if batch.there is None else batch.there.to(self.device)
        inputs, targets = pytree.tree_map(lambda tensor: tensor.to(self.device), (batch.inputs, batch.targets))
        return Batch(inputs, targets, there)

    def compute_losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return (summed loss in nats, right first guesses, number of targets) over all targets that are not ignored;
        guesses are counted for classifiers only."""
        if self.sum_losses is not None:
            return self.sum_losses(batch)
        count = (batch.targets != IGNORED).sum()
        logits = self.forward(batch).float()
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, -2), batch.targets.flatten(), reduction="sum", ignore_index=IGNORED
        )
        right = (logits.argmax(-1) == batch.targets).sum() if self.classifies else torch.zeros_like(count)
        return loss, right, count


def build_loader(datasets: Sequence[BatchDataset], padded: bool = False) -> Callable[[int, int], Batch]:
    """Return a function (first, last + 1) -> these items of the `datasets`, one after another; `padded`: the items are
    sequences that may be padded.

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
        inputs, targets = pytree.tree_map(lambda *tensors: torch.cat(tensors), *parts)
        there = (targets != IGNORED).flip(1).cummax(1).values.flip(1) if padded else None
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
