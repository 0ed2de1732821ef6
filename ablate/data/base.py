"""The base of all kinds of data: its configuration, the corpus it loads, and the datasets that give batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ablate.config.base import Kind
from ablate.config.bounds import MOST_SEED
from ablate.config.errors import DataError, Problem
from ablate.config.registry import Registry
from ablate.data.order import PermutedBatches, build_loader
from ablate.data.trivial_loss import MOST, choose_blocks, compute_trivial_loss, count_targets

Batch = tuple[Tensor, Tensor]

IGNORED = -100
"""The target of padding, which is neither trained on nor counted: what `cross_entropy` ignores."""


class TrainSet(Protocol):
    """Data to train on: a dataset in a seeded order, or a stream in its own."""

    def batches(
        self,
        batch_size: int,
        seed: int,
        *,
        start_batch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
    ) -> DataLoader[Any]:
        """Return batches without end, from `start_batch` on: of each, of `batch_size` items, the part of `rank`.

        What batch k holds depends on the batch size and the seed alone, and not on the ranks, the `workers` that read
        it, or where it was begun.
        """

    def count_workers(self, cores: int) -> int:
        """Return the processes, of one for each of `cores`, that it pays to read this for a GPU by."""

    def read_targets(self, most: int) -> Iterator[Tensor]:
        """Yield the targets of one epoch, in tensors of any shapes; of a large one as many as stand for it, reading at
        most about `most` values."""


class BatchDataset(Dataset[Batch], ABC):
    """A map-style dataset that gives whole batches of (inputs, targets)."""

    with_epoch: bool = False
    """Whether an item looks different in each epoch: it is asked for as `epoch * len(self) + index`."""

    def bind_seed(self, seed: int) -> BatchDataset:
        """Return what an experiment with `seed` trains on: this dataset, unless its items are changed at random."""
        return self

    def count_workers(self, cores: int) -> int:
        """See `TrainSet`: none where items are at hand."""
        return 0

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return the items at `indices`, collated: (inputs [batch, ...], targets [batch, ...])."""

    def __getitem__(self, index: int) -> Batch:
        inputs, targets = self.__getitems__([index])
        return inputs[0], targets[0]

    def batches(
        self,
        batch_size: int,
        seed: int,
        *,
        start_batch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
    ) -> DataLoader[Any]:
        """See `TrainSet`: each epoch in a permutation of its own."""
        data = self.bind_seed(seed)
        order = PermutedBatches(
            len(data),
            batch_size,
            seed,
            start_batch=start_batch,
            rank=rank,
            world_size=world_size,
            with_epoch=data.with_epoch,
        )
        return build_loader(data, order, workers)

    def read_targets(self, most: int) -> Iterator[Tensor]:
        """See `TrainSet`: of a large dataset blocks that are spread evenly over it. A dataset that has its targets at
        hand gives those, without reading its inputs."""
        if len(self):
            inputs, targets = self.__getitems__([0])
            for block in choose_blocks(len(self), max(1, most // max(1, inputs.numel(), targets.numel()))):
                yield self.__getitems__(block)[1]


@dataclass(frozen=True)
class ValSet:
    """A further validation set."""

    data: BatchDataset
    bytes_per_token: float | None = None
    """Mean UTF-8 bytes of one target; None for images."""


@dataclass(frozen=True)
class Corpus:
    """Data that is ready to train on."""

    train: TrainSet
    """The training set."""
    val: BatchDataset
    """The validation set; shares no item with `train`."""
    fingerprint: str
    """SHA-256 of the raw corpus, hexadecimal. Where the files lie does not enter it. A dataset on the hub is known by
    its name, commit, subset and split."""
    classes: int
    """The vocabulary size or the number of classes."""
    shape: tuple[int, ...]
    """The shape of one input: (seq_len,) or (channels, height, width)."""
    bytes_per_token: float | None
    """Mean UTF-8 bytes of one validation token, for bits per byte; None for images."""
    description: str
    """One line to print before training."""
    val_sets: Mapping[str, ValSet] = field(default_factory=dict)
    """Further validation sets by name, each reported on its own."""
    padded: bool = False
    """Whether items differ in length: some targets are then `IGNORED`."""

    @property
    def items_per_sample(self) -> int:
        """The count of one input in budgets and curves: its tokens, or 1 for an image."""
        return self.shape[0] if len(self.shape) == 1 else 1

    def measure_trivial_loss(self) -> float | None:
        """Return the validation loss in nats that needs no look at the inputs (`compute_trivial_loss`), exact unless
        there is too much to count; None where that cannot be told.

        For text it is the cross-entropy of the unigram distribution. Padding and what else is `IGNORED` do not count.
        """
        try:
            counts = [
                count_targets(data.read_targets(MOST), self.classes, IGNORED) if hasattr(data, "read_targets") else None
                for data in (self.train, self.val)
            ]
        except DataError:  # a stream that cannot be read now; training will say why
            return None
        train, val = counts
        return None if train is None or val is None else compute_trivial_loss(train, val)


UNITS = {"language_modeling": "tokens", "image_classification": "images"}
"""Task -> what it is trained on, counted."""


class DataConfig(Kind):
    """What is trained and validated on."""

    task: ClassVar[str]
    """"language_modeling" or "image_classification"."""

    former: ClassVar[Mapping[str, Any]] = {}
    """Field -> its value in stored configurations that are too old to have it."""

    split_seed: int = Field(0, ge=0, le=MOST_SEED)
    """Fixes the split into training and validation. Not the experiment's seed: all seeds share one validation set."""
    val_fraction: float = Field(0.05, gt=0, lt=1)
    """The part of the items that is held out for validation, where the data comes without a validation set."""

    @property
    def unit(self) -> str:
        """What is trained on, counted."""
        return UNITS.get(self.task, "items")

    @property
    def items_per_sample(self) -> int:
        """Units in one sample: the tokens of a sequence, or 1 of an image."""
        return self.input_shape[0] if len(self.input_shape) == 1 else 1

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, as far as the settings say it: that of `seq_len`; () where they do not."""
        length: int | None = getattr(self, "seq_len", None)
        return () if length is None else (length,)

    @property
    def val_names(self) -> tuple[str, ...]:
        """The names of further validation sets, whose metrics are called val/NAME/loss and so on."""
        return ()

    def load(self, cache: Path) -> Corpus:
        """Read the data; what is worth keeping for the next run goes under `cache`.

        Raises DataError where it is missing, damaged or too small.
        """
        raise NotImplementedError

    def validate(self, batch: int) -> list[Problem]:  # type: ignore[override]
        """Return what is wrong between these fields, or with `batch` items in a batch of one device."""
        return []


data_kinds: Registry[DataConfig] = Registry("data", DataConfig)


def check_one_origin(files: Sequence[str], dataset: str | None) -> None:
    """Raise ValueError unless either files or a dataset are given."""
    if bool(files) == (dataset is not None):
        both = "both are given" if files else "none is given"
        raise ValueError(f"needs either files or dataset, and {both}")
