"""Images for classification: scikit-learn's digits, which need no download, and folders of the user's."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat
from torch import Tensor

from ablate.data.base import Batch, BatchDataset, Corpus, DataConfig, data_kinds, split
from ablate.data.files import absolute
from ablate.data.image_files import (
    TEST_FOLDER,
    LabelledFiles,
    decode,
    find_images,
    find_layout,
    verified_fingerprint,
)
from ablate.errors import DataError, did_you_mean


class MemoryImages(BatchDataset):
    """Images that are in memory: float32 [n, channels, height, width] and their classes, int64 [n]."""

    def __init__(self, images: Tensor, labels: Tensor, class_names: tuple[str, ...]) -> None:
        self.images, self.labels, self.class_names = images, labels, class_names

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return self.images[rows], self.labels[rows]


class FileImages(BatchDataset):
    """Images that are decoded when they are asked for: float32 [batch, 3, size, size], scaled by `mean` and `std`."""

    def __init__(self, files: LabelledFiles, rows: NDArray[np.int64], config: ImageFolder) -> None:
        self.paths = [str(files.paths[row]) for row in rows]
        self.labels = torch.from_numpy(files.labels[rows])
        self.class_names = files.classes
        self.size = config.image_size
        self._mean = torch.tensor(config.mean)[:, None, None]
        self._std = torch.tensor(config.std)[:, None, None]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        pixels = np.empty((len(indices), self.size, self.size, 3), np.uint8)
        for row, index in enumerate(indices):
            pixels[row] = decode(Path(self.paths[index]), self.size)
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)
        images = images.sub_(self._mean).div_(self._std).contiguous()
        return images, self.labels[torch.as_tensor(indices, dtype=torch.int64)]


@data_kinds.register
class Digits(DataConfig):
    """scikit-learn's handwritten digits: 1,797 grey images of 8 x 8, in 10 classes."""

    kind: Literal["digits"] = "digits"
    task: ClassVar[str] = "image_classification"
    # Of the grey values 0 to 16 in the training part of the default split; constants, so that the inputs do not depend
    # on the split.
    MEAN: ClassVar[float] = 4.8734
    STD: ClassVar[float] = 6.0103

    val_fraction: float = Field(0.2, gt=0, lt=1)
    """The part of the images that is held out for validation."""

    def load(self, cache: Path) -> Corpus:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise DataError("Data kind digits needs the library scikit-learn: pip install scikit-learn") from error
        raw, digits = load_digits(return_X_y=True)
        pixels, classes = raw.astype(np.uint8), digits.astype(np.uint8)
        images = torch.from_numpy((raw.astype(np.float32) - self.MEAN) / self.STD).view(-1, 1, 8, 8)
        labels = torch.from_numpy(digits.astype(np.int64))
        names = tuple(map(str, range(10)))
        train, val = split(len(labels), self.val_fraction, self.split_seed, "images")
        return Corpus(
            train=MemoryImages(images[train], labels[train], names),
            val=MemoryImages(images[val], labels[val], names),
            fingerprint=hashlib.sha256(pixels.tobytes() + classes.tobytes()).hexdigest(),
            classes=len(names),
            shape=(1, 8, 8),
            bytes_per_token=None,
            description=f"digits: {len(train):,} training and {len(val):,} validation images of 8 x 8, 10 classes",
        )


@data_kinds.register
class ImageFolder(DataConfig):
    """Images of one's own in a folder for each class: root/CLASS/*.jpg, or root/train/CLASS and root/val/CLASS.

    The validation folder may also be called validation; without one a part of the training images is held out.
    root/test beside root/train is never read. Accepted are jpg, jpeg, png, webp and bmp. Every image is decoded once
    before training, to find the broken ones early.
    """

    kind: Literal["image_folder"] = "image_folder"
    task: ClassVar[str] = "image_classification"
    root: str = Field(min_length=1)
    """The folder, relative to the current directory."""
    image_size: int = Field(224, ge=1)
    """The shorter side is resized to this many pixels, then the centre is cut out as a square."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Subtracted from red, green and blue in [0, 1]; the default is ImageNet's."""
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.229, 0.224, 0.225)
    """What red, green and blue are divided by afterwards; the default is ImageNet's."""

    def load(self, cache: Path) -> Corpus:
        root = absolute(self.root)
        folder, val_folder = find_layout(root)
        files = val_files = find_images(folder)
        if val_folder is None:
            train, val = split(len(files.paths), self.val_fraction, self.split_seed, "images")
            paths = files.paths
        else:
            val_files = find_images(val_folder)
            _same_classes(files.classes, val_files.classes, folder, val_folder)
            train, val = np.arange(len(files.paths)), np.arange(len(val_files.paths))
            paths = files.paths + val_files.paths
        size = self.image_size
        alone = f"; {TEST_FOLDER}/ is left alone" if folder != root and os.path.isdir(root / TEST_FOLDER) else ""
        return Corpus(
            train=FileImages(files, train, self),
            val=FileImages(val_files, val, self),
            fingerprint=verified_fingerprint(paths, root, cache),
            classes=len(files.classes),
            shape=(3, size, size),
            bytes_per_token=None,
            description=f"image_folder: {len(train):,} training and {len(val):,} validation images of {size} x {size}, "
            f"{len(files.classes):,} classes{alone}",
        )


def _same_classes(train: Sequence[str], val: Sequence[str], folder: Path, val_folder: Path) -> None:
    """Raises DataError where training and validation have different classes."""
    missing, extra = sorted(set(train) - set(val)), sorted(set(val) - set(train))
    faults = []
    if missing:
        faults.append(f"{val_folder} lacks {', '.join(missing)}.")
    if extra:
        hint = did_you_mean(extra[0], missing)
        faults.append(f"{folder} lacks {', '.join(extra)}.{hint}")
    if faults:
        raise DataError(" ".join(["Training and validation have different classes.", *faults]))
