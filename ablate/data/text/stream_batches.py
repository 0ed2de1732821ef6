"""The batches of a stream in the form that torch's loader expects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset

from ablate.data.base import Batch


class StreamBatches(IterableDataset[Batch]):
    """The slice of one rank of each batch.

    Args:
        rows: opens the rows of the first and all later batches.
        collate: rows -> a batch.
        batch_size: rows of a batch over all ranks.
        offset: the first row of a batch that is this rank's.
        size: the number of rows of this rank.
    """

    def __init__(
        self,
        rows: Callable[[], Iterator[Any]],
        collate: Callable[[list[Any]], Batch],
        batch_size: int,
        offset: int,
        size: int,
    ) -> None:
        self.rows, self.collate = rows, collate
        self.batch_size, self.offset, self.size = batch_size, offset, size

    def __iter__(self) -> Iterator[Batch]:
        rows = self.rows()
        while True:
            batch = list(islice(rows, self.batch_size))
            yield self.collate(batch[self.offset : self.offset + self.size])
