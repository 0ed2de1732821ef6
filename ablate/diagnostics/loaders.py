"""Batches to measure with, from datasets of Ablate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ablate.data import IGNORED, BatchDataset
from ablate.diagnostics.measures.subject import Batch


def corpus_loader(datasets: Sequence[BatchDataset], unit: str) -> Callable[[int, int], Batch]:
    """A function that gives items `first` to `last` - 1 of the `datasets`, one after another. Where sequences are
    padded, it says where they are not: up to the input of the last target. A prompt before it, which no loss is taken
    of, is there as much as its answer."""

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
