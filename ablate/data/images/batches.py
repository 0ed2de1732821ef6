"""Batches of images: from memory, decoded on access, or decoded and augmented."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from numpy.typing import NDArray

from ablate.config.lazy import torch
from ablate.data.base import Batch, BatchDataset
from ablate.data.images.augment import Augmentation
from ablate.data.images.pixels import Pixels, Transform
from ablate.data.images.sources import ImageSource
from ablate.data.order import IMAGE, PAIR, keep_generators, seed_generators

if TYPE_CHECKING:
    from torch import Tensor


@contextlib.contextmanager
def _use_one_thread() -> Iterator[None]:
    """Let PyTorch compute on one thread, as in a worker process: on single images several threads are slower,
    especially on busy cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class LabelledImages(BatchDataset):
    """Images whose labels are in memory."""

    labels: Tensor
    """The class of each image, int64 [n]."""

    def __len__(self) -> int:
        return len(self.labels)

    def read_targets(self, most: int) -> Iterator[Tensor]:
        """See `BatchDataset`; all of them."""
        yield self.labels


class MemoryImages(LabelledImages):
    """Images that are in memory: float32 [n, channels, height, width] and their classes, int64 [n]."""

    def __init__(self, images: Tensor, labels: Tensor, class_names: tuple[str, ...]) -> None:
        self.images, self.labels, self.class_names = images, labels, class_names

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return self.images[rows], self.labels[rows]


class EncodedImages(LabelledImages):
    """The `rows` of a source, decoded on access: float32 [batch, 3, size, size] and int64 [batch]."""

    def __init__(self, source: ImageSource, rows: NDArray, pixels: Pixels, augment: Augmentation | None = None) -> None:
        self.source, self.rows, self.pixels, self.augment = source, rows, pixels, augment
        self.labels = torch.from_numpy(source.labels[rows])
        self.class_names = source.classes
        self.transform = pixels.build_transform()

    def bind_seed(self, seed: int) -> BatchDataset:
        random = None if self.augment is None else self.augment.build_transform(self.pixels)
        return self if self.augment is None or random is None else AugmentedImages(self, self.augment, random, seed)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        images = self.allocate(len(indices))
        with _use_one_thread():
            for place, index in enumerate(indices):
                images[place] = self.transform(self.source.load_image(int(self.rows[index])))
        return images, self.labels[torch.as_tensor(indices, dtype=torch.int64)]

    def count_workers(self, cores: int) -> int:
        """See `BatchDataset`: all cores, since decoding an image takes milliseconds."""
        return cores

    def allocate(self, count: int) -> Tensor:
        """Return an empty tensor for `count` images."""
        return torch.empty(count, 3, self.pixels.image_size, self.pixels.image_size)


class AugmentedImages(BatchDataset):
    """`EncodedImages` with augmentation: float32 [batch, 3, size, size] and int64 [batch], or, if images are mixed or
    labels smoothed, class probabilities, float32 [batch, classes].

    The index of an image is `epoch * len(self) + index`; the image is a function of (seed, epoch, index). Images are
    mixed in pairs, the first with the second of a batch, the third with the fourth; each pair draws its own weight, a
    function of (seed, epoch, index) of its first image. Since all images come in one order, the pairs are the same for
    every division of that order into batches of even size: by ranks, by accumulation, or by a resumed run.
    """

    with_epoch = True

    def __init__(self, plain: EncodedImages, augment: Augmentation, transform: Transform, seed: int) -> None:
        self.plain, self.augment, self.transform, self.seed = plain, augment, transform, seed
        self.mix = augment.build_mix(len(plain.class_names))

    def __len__(self) -> int:
        return len(self.plain)

    def count_workers(self, cores: int) -> int:
        """See `BatchDataset`."""
        return self.plain.count_workers(cores)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        plain, images = self.plain, self.plain.allocate(len(indices))
        positions = [divmod(int(number), len(plain)) for number in indices]
        with keep_generators(), _use_one_thread():
            for place, (epoch, index) in enumerate(positions):
                image = plain.source.load_image(int(plain.rows[index]))
                seed_generators(self.seed, IMAGE, epoch, index)
                images[place] = self.transform(image)
            labels = plain.labels[torch.tensor([index for _, index in positions], dtype=torch.int64)]
            return self._mix_pairs(images, labels, positions)

    def _mix_pairs(self, images: Tensor, labels: Tensor, positions: Sequence[tuple[int, int]]) -> Batch:
        if self.mix is None:
            return images, self.augment.soften(labels, len(self.plain.class_names))
        if len(labels) % 2:
            raise ValueError(f"images are mixed in pairs, and {len(labels)} were requested")
        targets = []
        for first in range(0, len(labels), 2):
            pair = slice(first, first + 2)
            seed_generators(self.seed, PAIR, *positions[first])
            images[pair], probabilities = self.mix(images[pair], labels[pair])
            targets.append(probabilities)
        return images, torch.cat(targets)
