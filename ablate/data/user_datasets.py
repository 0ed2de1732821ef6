"""Data that a plugin supplies as datasets: of torch, of the library `datasets`, or of a LightningDataModule.

Ablate reads them in its own order, which resumes exactly, and seeds what they draw at random for each item.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ablate.config.errors import DataError
from ablate.config.lazy import pytree, torch
from ablate.data.base import IGNORED, Batch, Corpus, DataConfig, Samples, choose_blocks
from ablate.data.order import SAMPLE, keep_generators, seed_generators
from ablate.data.overlap import Overlap, check_overlap, measure_items
from ablate.data.progress import show_progress
from ablate.data.splits import split

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule
    from torch import Tensor

logger = logging.getLogger(__name__)

_TWICE = 1000
"""Number of items of a set, evenly spread, that are read twice: whether they are the same each time."""
MOST_COMPARED = 2048
"""Items of training and of validation that are compared where the dataset names its content itself."""


class UserDataset(DataConfig):
    """Data of datasets that a plugin builds.

    A subclass sets `kind` and `task`, and defines `build`. Every item is read once when a run starts, for the
    fingerprint and to check it, unless `identify` is defined.
    """

    classes: ClassVar[int | None] = None
    """The vocabulary size or the number of classes; None: the number of `classes` of the training dataset, as in
    torchvision, or of its one ClassLabel column, as in `datasets`."""

    def build(self) -> LightningDataModule | tuple[Any, Any]:
        """Return the training and the validation dataset, each with a length and items by number; None as the second
        holds out `val_fraction` of the first. Or a LightningDataModule, whose loaders provide the datasets and
        `collate_fn`, but neither sampler nor batch size."""
        raise NotImplementedError

    def convert(self, item: Any) -> tuple[Any, Any]:
        """Return (input, target) of one item of a dataset: a tensor and a number or tensor, or nested structures of
        tensors. By default items are such pairs."""
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            text = f"an item is a {type(item).__name__}, not (input, target)"
            raise DataError(f"Data {self.kind}: {text}. Define `convert(self, item)`, which returns (input, target).")
        first, second = item
        return first, second

    def collate(self, samples: Sequence[tuple[Any, Any]]) -> Batch:
        """Return a batch of samples, by default stacked, as in torch's `default_collate`. Not called for a
        LightningDataModule whose loaders have a `collate_fn` of their own."""
        inputs, targets = torch.utils.data.default_collate(list(samples))
        return inputs, targets

    def identify(self) -> str | None:
        """Return a text that changes whenever the data does, such as a version; None: every item is read and hashed."""
        return None

    def load(self, cache: Path) -> Corpus:
        train, val, collate = self._open()
        if val is None:
            own, held_out = split(len(train), self.val_fraction, self.split_seed)
            parts = [(train, own), (train, held_out)]
        else:
            parts = [(train, np.arange(len(train))), (val, np.arange(len(val)))]
        fit, check = (UserSamples(self, data, rows, collate) for data, rows in parts)
        for name, data in {"training": fit, "validation": check}.items():
            if not len(data):
                raise DataError(f"Data {self.kind}: the {name} dataset has no items.")
        classes, named = self._count_classes(train), self.identify()
        first = fit.read(0)
        shape = tuple(first[0].shape) if isinstance(first[0], torch.Tensor) else self.input_shape
        is_stacked = collate == self.collate and type(self).collate is UserDataset.collate
        if named is None:
            digest, ignores, note = _hash([fit, check], classes, val is None)
        else:
            digest, ignores = hashlib.sha256(named.encode()).hexdigest(), True
            note = "" if val is None else _compare_some(fit, check)
        return Corpus(
            train=fit,
            val=check,
            fingerprint=digest,
            classes=classes,
            shape=shape,
            bytes_per_token=None,
            description=f"{self.kind}: {len(fit):,} training and {len(check):,} validation items, {classes:,} classes"
            f"{note}",
            padded=ignores or not is_stacked,
        )

    def _open(self) -> tuple[Any, Any, Any]:
        """Return the two datasets and the function that collates their samples."""
        built, collate = self.build(), self.collate
        if not isinstance(built, (tuple, list)):
            train, val, own = _open_module(built, self.kind)
            collate = own or collate
        elif len(built) != 2:
            raise DataError(f"Data {self.kind}: build() returned {len(built)} datasets, not two: training, validation.")
        else:
            train, val = built
        for data in (train, val):
            if data is not None and not (isinstance(data, Sized) and hasattr(data, "__getitem__")):
                raise DataError(
                    f"Data {self.kind}: a {type(data).__name__} has no length or no items by number. A stream "
                    "(IterableDataset) has no order that a resumed run could continue; give a map-style dataset."
                )
        return train, val, collate

    def _count_classes(self, data: Any) -> int:
        if self.classes is not None:
            return self.classes
        if isinstance(names := getattr(data, "classes", None), Sized):
            return len(names)
        columns = (getattr(data, "features", None) or {}).values()
        counts = [column.num_classes for column in columns if hasattr(column, "num_classes")]
        if len(counts) == 1:
            return int(counts[0])
        raise DataError(
            f"Data {self.kind}: how many classes or tokens there are is unknown. Set `classes` in the class."
        )


def _open_module(module: Any, kind: str) -> tuple[Any, Any, Any]:
    """Return the training and the validation dataset of a LightningDataModule, and the `collate_fn` that both its
    loaders name; None if that is torch's."""
    from lightning.pytorch import LightningDataModule
    from torch.utils.data import DataLoader, default_collate

    if not isinstance(module, LightningDataModule):
        accepted = "(training, validation) datasets or a LightningDataModule"
        raise DataError(f"Data {kind}: build() returned a {type(module).__name__}. Accepted: {accepted}.")
    module.prepare_data()
    module.setup("fit")
    loaders = [module.train_dataloader(), module.val_dataloader()]
    for loader in loaders:
        if not isinstance(loader, DataLoader):
            raise DataError(f"Data {kind}: a loader of the module is a {type(loader).__name__}, not one DataLoader.")
    logger.info(f"{kind}: order, batch size and workers are Ablate's, not those of {type(module).__name__}'s loaders")
    collates = [loader.collate_fn for loader in loaders]
    if collates[0] != collates[1]:
        raise DataError(f"Data {kind}: the loaders of the module have different collate_fn; give both the same.")
    return loaders[0].dataset, loaders[1].dataset, None if collates[0] is default_collate else collates[0]


class UserSamples(Samples):
    """Items `rows` of a dataset of a plugin. What the dataset draws at random is a function of (seed, epoch, item)."""

    with_epoch = True

    def __init__(self, config: UserDataset, data: Any, rows: NDArray[np.int64], collate: Any, seed: int = 0) -> None:
        super().__init__((), collate)
        self.config, self.data, self.rows, self.seed = config, data, rows, seed

    def bind_seed(self, seed: int) -> UserSamples:
        """See `BatchDataset`."""
        return UserSamples(self.config, self.data, self.rows, self.collate, seed)

    def select(self, numbers: NDArray[np.int64]) -> UserSamples:
        """See `BatchDataset`."""
        return UserSamples(self.config, self.data, self.rows[numbers], self.collate, self.seed)

    def count_workers(self, cores: int) -> int:
        """See `BatchDataset`: all cores, since the cost of reading an item is unknown."""
        return cores

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> tuple[Any, Any]:
        """Return the sample at `index`, `epoch * len(self)` and more in later epochs."""
        epoch, place = divmod(int(index), len(self.rows))
        row = int(self.rows[place])
        with keep_generators():
            seed_generators(self.seed, SAMPLE, epoch, row)
            return self.config.convert(self.data[row])

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        samples = [self.read(index) for index in (indices or [0])]
        try:
            batch = self.collate(samples)
        except (RuntimeError, TypeError) as error:
            raise DataError(
                f"Data {self.config.kind}: items cannot be put into one batch ({str(error).splitlines()[0]}). Items of "
                "different shapes need a `collate(self, samples)`, which pads them."
            ) from error
        return batch if indices else pytree.tree_map(lambda tensor: tensor[:0], batch)

    def read_targets(self, most: int) -> Iterator[Tensor]:
        """See `BatchDataset`."""
        values = sum(torch.as_tensor(leaf).numel() for leaf in pytree.tree_leaves(self.read(0)[1]))
        for block in choose_blocks(len(self), max(1, most // max(1, values))):
            yield self.__getitems__(list(block))[1]


def _hash(parts: Sequence[UserSamples], classes: int, held_out: bool) -> tuple[str, bool, str]:
    """Return the SHA-256 over all samples of (training, validation), "" if they differ at each reading, whether one has
    a target that is `IGNORED`, and the share of validation samples that are training samples as a part of the
    description. Raises DataError if it is too large, and for a sample that is not of tensors and numbers, or has a
    class beyond `classes`."""
    digest, done, ignores, kind = hashlib.sha256(), 0, False, parts[0].config.kind
    samples: list[list[bytes]] = [[] for _ in parts]
    repeats = True
    with show_progress(f"reading {kind}", sum(map(len, parts)), "items") as advance:
        for part, hashes in zip(parts, samples, strict=True):
            spacing = -(-len(part) // _TWICE)
            for index in range(len(part)):
                content, targets = _read_bytes(part, index)
                if repeats and index % spacing == 0:
                    repeats = _read_bytes(part, index)[0] == content
                digest.update(content)
                hashes.append(hashlib.sha256(content).digest())
                _check_class(targets, classes, int(part.rows[index]), kind)
                ignores = ignores or any((torch.as_tensor(x) == IGNORED).any() for x in pytree.tree_leaves(targets))
                done += 1
                advance(done)
    if not repeats:
        logger.warning(
            f"Data {kind}: its items differ at each reading, so a change of the data cannot be detected. "
            "Define `identify()`, which returns a text that changes whenever the data does, or draw at random from the "
            "global generators alone, which are seeded for each item."
        )
    return (
        digest.hexdigest() if repeats else "",
        ignores,
        _tell_overlap(parts[1], measure_items(samples[0], samples[1]), held_out),
    )


def _compare_some(train: UserSamples, val: UserSamples) -> str:
    """Return the estimated share of validation samples that are training samples, as `_hash` does, from `MOST_COMPARED`
    of each: for a dataset that names its content, so that it need not be read."""
    some = [
        [_read_bytes(part, int(index))[0] for index in np.random.default_rng(0).permutation(len(part))[:MOST_COMPARED]]
        for part in (train, val)
    ]
    overlap = measure_items(some[0], some[1])
    estimated = min(1.0, overlap.share * len(train) / len(some[0]))
    return _tell_overlap(val, overlap._replace(share=estimated), held_out=False)


def _read_bytes(part: UserSamples, index: int) -> tuple[bytes, Any]:
    """Return the content of a sample, and its targets."""
    inputs, targets = part.read(index)
    leaves = (*pytree.tree_leaves(inputs), *pytree.tree_leaves(targets))
    return b"".join(_encode(leaf, part.config.kind) for leaf in leaves), targets


def _tell_overlap(val: UserSamples, overlap: Overlap, held_out: bool) -> str:
    return check_overlap(overlap, val.config.max_overlap, f"the validation items of {val.config.kind}", held_out)


def _encode(leaf: Any, kind: str) -> bytes:
    """Return the type, shape and values of a tensor or number."""
    try:
        values = leaf.numpy() if isinstance(leaf, torch.Tensor) else np.asarray(leaf)
        if values.dtype.kind not in "biufc":
            raise TypeError
    except (TypeError, ValueError):
        text = f"a sample has a {type(leaf).__name__}, which is neither a tensor nor a number"
        raise DataError(f"Data {kind}: {text}. Convert it in the dataset's transform or in `convert`.") from None
    return f"{values.dtype.str}{values.shape}".encode() + np.ascontiguousarray(values).tobytes()


def _check_class(targets: Any, classes: int, row: int, kind: str) -> None:
    """Raise DataError for a single class or token that is not one of `classes`; the largest of a tensor of them."""
    if isinstance(targets, Mapping) or (isinstance(targets, torch.Tensor) and targets.is_floating_point()):
        return  # boxes, masks by name, numbers: their task knows what is valid
    largest = max((float(torch.as_tensor(leaf).max()) for leaf in pytree.tree_leaves(targets)), default=-math.inf)
    if largest >= classes:
        raise DataError(f"Data {kind}: item {row} has the target {largest:g}, and there are {classes} classes, from 0.")
