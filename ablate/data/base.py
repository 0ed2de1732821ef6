"""The base classes of all kinds of data: the configuration, the corpus that it loads, and the datasets that return
batches."""

from __future__ import annotations

import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ablate.config.base import Config, Kind, Names
from ablate.config.bounds import MOST_SEED
from ablate.config.errors import Problem
from ablate.config.lazy import pytree, torch
from ablate.config.registry import Registry
from ablate.data.files import find_files
from ablate.data.order import PermutedBatches, build_loader

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader
    from typing_extensions import Self

MOST = 1 << 22
"""Values of a dataset that are read to count its targets, in a fraction of a second from the disk's cache."""

BLOCKS = 64
"""Number of parts of a larger dataset that are read, spread evenly over it: files are often sorted by topic."""


def choose_blocks(items: int, most: int) -> Iterator[range]:
    """Yield blocks of the numbers below `items`, ascending: all numbers, or at most `most`, spread evenly."""
    size = max(1, most // BLOCKS)
    count = -(-items // size) if items <= most else max(1, most // size)
    starts = range(0, items, size) if items <= most else [items * block // count for block in range(count)]
    for start in starts:
        yield range(start, min(start + size, items))


def count_targets(targets: Iterable[Tensor], classes: int, ignored: int) -> NDArray[np.int64] | None:
    """Return the count of each class in `targets`, of any shapes, without `ignored` targets [classes]; None if a target
    is not a class."""
    counts = np.zeros(classes, np.int64)
    for part in targets:
        if part.dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
            return None
        numbers = part.flatten().long()
        if (numbers < 0).any():
            numbers = numbers[numbers != ignored]
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < classes:
            return None
        counts += torch.bincount(numbers, minlength=classes).numpy()
    return counts


def compute_trivial_loss(train: NDArray[np.int64], val: NDArray[np.int64]) -> float | None:
    """Return the mean loss in nats, on targets with the class counts `val`, of the better of two predictors: the class
    frequencies of `train`, or the uniform distribution. None if there is nothing to count.

    Frequencies are smoothed, since a class without training targets would otherwise have an infinite loss: d of n + d
    counts, with d the number of distinct classes among the n, are shared evenly by all classes (Witten & Bell 1991,
    method C). If all classes occur, that is Laplace's rule, one more of each; with a vocabulary that is larger than the
    text, adding one would take most of the mass.
    """
    if not train.sum() or not val.sum():
        return None
    distinct, classes = np.count_nonzero(train), len(train)
    shares = (train + distinct / classes) / (train.sum() + distinct)
    loss = float(-(val * np.log(shares)).sum() / val.sum())
    return min(loss, math.log(classes))


Batch: TypeAlias = "tuple[Any, Any]"
"""(inputs, targets), each a tensor or a nested structure of tensors; the first dimension of each is the batch."""

IGNORED = -100
"""The target of padding, which is neither trained on nor counted: the `ignore_index` of `cross_entropy`."""


class BatchDataset(ABC):
    """A map-style dataset that returns whole batches of (inputs, targets)."""

    with_epoch: bool = False
    """Whether an item differs between epochs: its index is then `epoch * len(self) + index`."""

    def bind_seed(self, seed: int) -> BatchDataset:
        """Return the training dataset of an experiment with `seed`: this one, unless its items are changed at
        random."""
        return self

    def count_workers(self, cores: int) -> int:
        """Return how many worker processes are useful for reading this data for a GPU, at most one for each of `cores`:
        none, since items are in memory or memory-mapped."""
        return 0

    def select(self, numbers: NDArray[np.int64]) -> BatchDataset:
        """Return the dataset of the items with these `numbers`, in that order."""
        return Part(self, numbers)

    def measure_bytes_per_token(self) -> float | None:
        """Return the mean UTF-8 bytes of a target; None if it is not text or the number is unknown."""
        return None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return the items at `indices`, collated: (inputs [batch, ...], targets [batch, ...])."""

    def __getitem__(self, index: int) -> Batch:
        first: Batch = pytree.tree_map(lambda tensor: tensor[0], self.__getitems__([index]))
        return first

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
        """Return an endless sequence of training batches from `start_batch` on, each epoch in its own permutation: of
        each batch of `batch_size` items, the part of `rank`. The items of batch k depend only on the batch size and the
        seed, not on the ranks, the `workers` that read it, or `start_batch`."""
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
        """Yield the targets of one epoch, in tensors of any shapes; for a large dataset those of blocks that are spread
        evenly over it, at most about `most` values. A dataset that stores its targets does not read its inputs."""
        if len(self):
            values = max(1, *(sum(t.numel() for t in pytree.tree_leaves(part)) for part in self.__getitems__([0])))
            for block in choose_blocks(len(self), max(1, most // values)):
                yield self.__getitems__(block)[1]


class Samples(BatchDataset):
    """Samples at hand, (input, target) each, put into batches by `collate`, such as that of a task."""

    def __init__(
        self, samples: Sequence[tuple[Any, Any]], collate: Callable[[Sequence[tuple[Any, Any]]], Batch]
    ) -> None:
        self.samples, self.collate = samples, collate

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        if not len(indices):  # a rank with no samples left in the last batch of a validation
            none: Batch = pytree.tree_map(lambda tensor: tensor[:0], self.collate([self.samples[0]]))
            return none
        return self.collate([self.samples[index] for index in indices])


class Part(BatchDataset):
    """A subset of another dataset: its items `numbers` [n]."""

    def __init__(self, whole: BatchDataset, numbers: NDArray[np.int64]) -> None:
        self.whole, self.numbers = whole, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        return self.whole.__getitems__(self.numbers[np.asarray(indices, np.int64)].tolist())

    def count_workers(self, cores: int) -> int:
        """See `BatchDataset`."""
        return self.whole.count_workers(cores)


@dataclass(frozen=True)
class ValSet:
    """A further validation set."""

    data: BatchDataset
    bytes_per_token: float | None = None
    """Mean UTF-8 bytes of one target; None for images."""

    def spread(self, count: int) -> ValSet:
        """Return `count` items, evenly spread over all; the dataset itself if it has no more."""
        size = len(self.data)
        if count >= size:
            return self
        part = self.data.select(np.arange(count) * size // count)
        measured = None if self.bytes_per_token in (None, 1.0) else part.measure_bytes_per_token()
        return ValSet(part, measured or self.bytes_per_token)


@dataclass(frozen=True)
class Corpus:
    """Data that is ready to train on."""

    train: BatchDataset
    """The training set."""
    val: BatchDataset
    """The validation set; shares no item with `train`."""
    fingerprint: str
    """SHA-256 of the raw corpus, hexadecimal. It does not depend on the location of the files. A dataset on the hub is
    identified by its name, commit, subset and split. "": not known, as its items differ at each reading."""
    classes: int
    """The vocabulary size or the number of classes."""
    shape: tuple[int, ...]
    """The shape of one input: (seq_len,) or (channels, height, width)."""
    bytes_per_token: float | None
    """Mean UTF-8 bytes of one validation token, for bits per byte; None for images."""
    description: str
    """One line to print before training."""
    val_sets: Mapping[str, ValSet] = field(default_factory=dict)
    """Further validation sets by name, each reported separately."""
    padded: bool = False
    """Whether some targets may be `IGNORED`, as padding is."""

    @property
    def identity(self) -> str:
        """The fingerprint or, without one, a text that no other corpus has."""
        return self.fingerprint or uuid.uuid4().hex

    def limit_validation(self, count: int | None) -> Self:
        """Return the corpus with `count` evenly spread items of each validation set; None: with all."""
        if count is None:
            return self
        val = ValSet(self.val, self.bytes_per_token).spread(count)
        further = {name: part.spread(count) for name, part in self.val_sets.items()}
        return replace(self, val=val.data, bytes_per_token=val.bytes_per_token, val_sets=further)

    def count_validation_items(self) -> list[int]:
        """Return the sizes of the validation set and of the further ones."""
        return [len(self.val), *(len(part.data) for part in self.val_sets.values())]

    def measure_trivial_loss(self) -> float | None:
        """Return the validation loss in nats of a predictor that ignores the inputs (`compute_trivial_loss`), exact
        unless the data is too large to count; None if it is undefined. For text it is the cross-entropy of the unigram
        distribution. Targets that are `IGNORED`, such as padding, do not count.
        """
        train, val = (count_targets(data.read_targets(MOST), self.classes, IGNORED) for data in (self.train, self.val))
        return None if train is None or val is None else compute_trivial_loss(train, val)


class DataConfig(Kind):
    """The data for training and validation."""

    task: ClassVar[str]
    """The task that its targets are for, of `ablate.tasks`."""

    split_seed: int = Field(0, ge=0, le=MOST_SEED)
    """Fixes the split into training and validation. Not the experiment's seed: all seeds share one validation set."""
    val_fraction: float = Field(0.05, gt=0, lt=1)
    """The share of the items that is held out for validation, if the data has no validation set."""
    max_overlap: float = Field(0.1, ge=0, le=1)
    """The largest share of a validation set that may also be training data, by content. More is refused. 1:
    everything."""

    @property
    def default_task(self) -> str:
        """The task of its targets with these settings. It is trained unless the experiment names another."""
        return self.task

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input if the settings determine it, that is by `seq_len`; otherwise ()."""
        length: int | None = getattr(self, "seq_len", None)
        return () if length is None else (length,)

    @property
    def wanted_val_samples(self) -> int | None:
        """Number of sequences or images for validation that the settings request; None if they do not set it."""
        return None

    @property
    def most_val_samples(self) -> int | None:
        """Upper bound on the sequences or images of the validation set; None if the settings do not determine it."""
        return self.wanted_val_samples

    @property
    def val_names(self) -> tuple[str, ...]:
        """The names of further validation sets, whose metrics are val/NAME/loss and so on."""
        return ()

    @property
    def most_val_sizes(self) -> list[int | None]:
        """`most_val_samples` of the validation set and of each further one."""
        return [self.most_val_samples] * (1 + len(self.val_names))

    def count_prepared_bytes(self, classes: int) -> int | None:
        """Return the bytes of what `load` keeps in the cache, with a vocabulary of `classes`; None if they are not
        known beforehand."""
        return None

    def check_files(self) -> None:
        """Raise DataError if a local file of `files` or `val_files` is not there, before anything is read."""
        for names in (getattr(self, "files", ()), getattr(self, "val_files", ())):
            find_files([name for name in names or () if "://" not in str(name)], lambda path: True, "")

    def load(self, cache: Path) -> Corpus:
        """Return the corpus; prepared data is kept under `cache` for later runs. Raises DataError if data is missing,
        damaged or too small.
        """
        raise NotImplementedError

    def validate(self, batch: int) -> list[Problem]:  # type: ignore[override]
        """Return the problems with combinations of these fields, or with `batch` items in a batch of one device."""
        return []


data_kinds: Registry[DataConfig] = Registry("data", DataConfig)


class Origin(NamedTuple):
    """Files, or if one is named a split of a dataset."""

    files: Sequence[str]
    dataset: str | None = None
    subset: str | None = None
    split: str = ""
    revision: str | None = None


class EndOfText(Config):
    """Which token stands between documents."""

    end_of_text: str | None = Field(None, min_length=1)
    """The token that ends each document or answer, or none. None: `eos_token` in the tokenizer_config.json beside the
    tokenizer, or the token that is known for such tokenizers; where neither is there, several documents are refused."""


class Documents(Config):
    """Documents in the windows of a stream."""

    mask_documents: bool = False
    """Whether a token attends to its own document alone, and not to those before it in the window, which their
    end-of-text tokens separate. Attention then has a mask of seq_len^2 for each window, and computes all pairs."""


class FilesOrDataset(Config):
    """Files of one's own, or a dataset."""

    replaces: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "files": ("dataset", "subset", "train_split", "val_split", "split", "revision"),
        "dataset": ("files",),
        "val_files": ("val_split",),
        "val_split": ("val_files",),
    }
    files: Names = ()
    """Paths or globs (`**` goes into subfolders), relative to the current directory; the files of a glob are sorted."""
    dataset: str | None = None
    """Instead of `files`: a dataset of the Hugging Face hub, such as allenai/c4, or a folder that `datasets` can load.
    """
    subset: str | None = None
    """The dataset's subset (configuration), such as en."""
    revision: str | None = None
    """Branch, tag or commit of the dataset on the hub. None: main, at the commit when this machine first read it."""

    @model_validator(mode="after")
    def _has_one_origin(self) -> FilesOrDataset:
        if bool(self.files) == (self.dataset is not None):
            raise ValueError(f"needs either files or dataset, and {'both are' if self.files else 'none is'} given")
        settings = [name for name in ("subset", "revision", "val_split") if getattr(self, name, None) is not None]
        if settings and self.dataset is None:
            raise ValueError(f"{', '.join(settings)}: only valid with `dataset`, which is not set")
        return self

    def locate(self, split: str) -> Origin:
        """Return the files, or a split of the dataset."""
        return Origin(self.files, self.dataset, self.subset, split, self.revision)


class TextOrigin(EndOfText, FilesOrDataset, DataConfig):
    """Text to train on in files or in a dataset."""

    train_split: str = "train"
    """The dataset's split to train on."""


class TwoOrigins(TextOrigin):
    """Text with a validation set of its own, if one is named."""

    val_files: Names = ()
    """The validation set as files. Without it, and without `val_split`, a part of the training data is held out."""
    val_split: str | None = None
    """The dataset's split to validate on. None: a part of `train_split` is held out."""

    @model_validator(mode="after")
    def _has_one_validation_set(self) -> TwoOrigins:
        if self.val_split is not None and self.val_files:
            raise ValueError("both val_split and val_files are given; remove one")
        return self

    def locate_validation(self) -> Origin | None:
        """Return where the validation set is; None if none is named."""
        if self.val_files:
            return Origin(self.val_files)
        return None if self.val_split is None else self.locate(self.val_split)
