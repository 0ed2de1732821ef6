"""The order of items, and the other random numbers of the data: functions of a seed alone, whichever process reads
them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ablate.config.lazy import torch

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

T = TypeVar("T")


def draw_permutation(items: int, seed: int, *stream: int) -> NDArray[np.int64]:
    """Return a permutation of `range(items)` for each (seed, stream), the same on every platform and numpy version.

    Raises ValueError for a negative seed.
    """
    return np.argsort(_start_bits(seed, *stream).random_raw(items), kind="stable").astype(np.int64)


def draw_below(most: int, seed: int, *stream: int) -> int:
    """Return a number in `range(most)` for each (seed, stream), the same on every platform and numpy version."""
    return int(_start_bits(seed, *stream).random_raw()) % most


def _start_bits(seed: int, *stream: int) -> np.random.PCG64:
    """Return the generator of a (seed, stream). numpy guarantees its raw numbers across versions, but not those of
    Generator."""
    return np.random.PCG64(np.random.SeedSequence(seed, spawn_key=stream))


def share_batch(batch_size: int, rank: int, world_size: int) -> int:
    """Return the number of items of a batch for each rank. Raises ValueError if the batch cannot be divided equally."""
    if batch_size < 1 or world_size < 1 or batch_size % world_size:
        raise ValueError(f"a batch of {batch_size} cannot be shared equally by {world_size} ranks")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size} ranks")
    return batch_size // world_size


class PermutedBatches:
    """An endless sequence of training batches: each epoch is in its own permutation. Batch k contains the positions [k
    * batch_size, (k + 1) * batch_size) of the concatenated epochs. A batch may extend over two epochs, so nothing is
    dropped: every item appears exactly once per epoch, whatever the batch size and the number of ranks. Iterating again
    starts again at `start_batch`.

    Args:
        items: the size of the dataset.
        batch_size: items of one batch over all ranks; each rank gets `batch_size / world_size` of them.
        seed: seed of the permutations, not negative.
        start_batch: the first batch to return; earlier batches are not computed.
        rank: which slice of each batch to return.
        world_size: the number of ranks. Raises ValueError unless it divides `batch_size`.
        with_epoch: return `epoch * items + index` instead of `index`, for data that differs between epochs.
    """

    def __init__(
        self,
        items: int,
        batch_size: int,
        seed: int,
        *,
        start_batch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        with_epoch: bool = False,
    ) -> None:
        if items < 1 or start_batch < 0 or seed < 0:
            raise ValueError(
                f"items must be positive ({items}), start_batch and seed not negative ({start_batch}, {seed})"
            )
        self.items, self.batch_size, self.seed, self.start_batch = items, batch_size, seed, start_batch
        self.size = share_batch(batch_size, rank, world_size)
        self.rank, self.world_size, self.with_epoch = rank, world_size, with_epoch

    def __iter__(self) -> Iterator[list[int]]:
        epoch, order = -1, np.empty(0, np.int64)
        first = self.start_batch * self.batch_size + self.rank * self.size
        while True:
            batch: list[int] = []
            while len(batch) < self.size:
                wanted, offset = divmod(first + len(batch), self.items)
                if wanted != epoch:
                    epoch, order = wanted, draw_permutation(self.items, self.seed, 1, wanted)
                    order += epoch * self.items if self.with_epoch else 0
                batch += order[offset : offset + self.size - len(batch)].tolist()
            yield batch
            first += self.batch_size


class SequentialBatches:
    """Batches for validation: every item once over all ranks, each rank a contiguous part of the dataset.

    All ranks return the same number of batches, since a model that is sharded over the ranks waits for all of them. A
    batch is empty only on a rank that has fewer items than batches. Sizes differ, so averages must be weighted.

    Args:
        items: the size of the dataset.
        batch_size: items of one batch over all ranks.
        rank: which part of the dataset to return.
        world_size: the number of ranks. Raises ValueError unless it divides `batch_size`.
    """

    def __init__(self, items: int, batch_size: int, *, rank: int = 0, world_size: int = 1) -> None:
        self.size = share_batch(batch_size, rank, world_size)
        self.first, self.last = items * rank // world_size, items * (rank + 1) // world_size
        largest = -(-items // world_size)
        self.batches = -(-largest // self.size)

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        count = self.last - self.first
        # A later batch keeps at least one item while there are enough: full batches first, but none of them empty.
        ends = [min((k + 1) * self.size, max(0, count - (self.batches - k - 1))) for k in range(self.batches)]
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            yield list(range(self.first + start, self.first + end))


def _pass_through(batch: T) -> T:
    """Return the batch: `__getitems__` has collated already."""
    return batch


def build_loader(dataset: Any, batches: Iterable[list[int]], workers: int = 0) -> DataLoader[Any]:
    """Return a loader of `dataset.__getitems__(indices)` for each of `batches`, read by `workers` processes (0: by this
    one)."""
    return torch.utils.data.DataLoader(
        dataset,
        batch_sampler=batches,
        collate_fn=_pass_through,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
        # Otherwise each start of an iteration draws from the global generator, and a resumed run would differ.
        generator=torch.Generator(),
    )


IMAGE, PAIR, SAMPLE = 2, 3, 4
"""The streams of random numbers below a seed; the order of the data is stream 1."""


def seed_generators(seed: int, *stream: int) -> None:
    """Seed the global generators of Python, numpy and PyTorch (on the CPU) for each (seed, stream)."""
    python, numpy, pytorch = np.random.SeedSequence(seed, spawn_key=stream).generate_state(3)
    random.seed(int(python))
    np.random.seed(numpy)
    torch.default_generator.manual_seed(int(pytorch))


@contextlib.contextmanager
def keep_generators() -> Iterator[None]:
    """Restore the states of the three generators afterwards."""
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(pytorch)
