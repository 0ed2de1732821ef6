"""Images with masks: the class of each pixel, as an image of the same size whose pixels are numbers of classes."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ablate.config.errors import DataError, Problem
from ablate.config.lazy import LazyModule
from ablate.data.base import IGNORED, Batch, BatchDataset
from ablate.data.cache import remember
from ablate.data.files import explain
from ablate.data.images.augment import Augmentation
from ablate.data.images.folders import FolderImages, list_images
from ablate.data.images.pixels import Pixels, crop_centre
from ablate.data.images.sources import ImageSource

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch")

IMAGES, MASKS = "images", "masks"
"""The folders of a set."""
_GREY = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")
"""Pillow's modes with one number for each pixel; of a palette it is the index."""


@dataclass(frozen=True)
class MaskedSource:
    """Images and their masks, row by row."""

    images: ImageSource
    masks: ImageSource
    classes: int
    """Number of classes: pixels of masks are 0 to classes - 1."""
    ignored: int | None
    """The pixel that is no class, which is not trained on."""

    def __len__(self) -> int:
        return len(self.images)

    def load(self, row: int) -> tuple[Image.Image, NDArray[np.int64]]:
        """Return the image in RGB and its mask [height, width], `IGNORED` where there is no class. Raises DataError
        that names a mask that does not fit."""
        image, name = self.images.load_image(row), self.masks.name(row)
        try:
            mask = decode_mask(self.masks.read(row))
        except DataError as error:
            raise DataError(f"The mask {name} cannot be read: {error}") from error
        if mask.shape != (image.height, image.width):
            raise DataError(
                f"The mask {name} has {mask.shape[1]} x {mask.shape[0]} pixels, and its image {self.images.name(row)} "
                f"{image.width} x {image.height}: a mask has the size of its image."
            )
        is_ignored = np.zeros(mask.shape, bool) if self.ignored is None else mask == self.ignored
        if len(outside := np.unique(mask[~is_ignored & ((mask < 0) | (mask >= self.classes))])):
            raise DataError(
                f"The mask {name} has the class {outside[-1]}, and data.mask_classes is {self.classes}: 0 to "
                f"{self.classes - 1}. Raise data.mask_classes, or give the number that is no class as data.ignored."
            )
        return image, np.where(is_ignored, IGNORED, mask)

    def check(self, key: str, cache: Path) -> None:
        """Load each image and mask once, until their files change. Raises DataError with the first faults."""
        key = f"{key}, masks of {self.classes} classes without {self.ignored}"
        files = [*self.images.files(), *self.masks.files()]
        if files:
            remember(key, files, cache, self._check_all)
        else:
            self._check_all()

    def _check_all(self) -> list[str]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            faults = [fault for fault in pool.map(self._find_fault, range(len(self))) if fault]
        if faults:
            count = "1 mask does" if len(faults) == 1 else f"{len(faults)} masks do"
            raise DataError("\n".join([f"{count} not fit:", *(f"  {fault}" for fault in faults[:5])]))
        return ["checked"]

    def _find_fault(self, row: int) -> str:
        try:
            self.load(row)
        except DataError as error:
            return str(error)
        return ""


class MaskedImages(BatchDataset):
    """The `rows` of a source: float32 [batch, 3, size, size] and the class of each pixel, int64 [batch, size, size].
    The centre square of both is resized, of a mask to the nearest pixel."""

    def __init__(self, source: MaskedSource, rows: NDArray[np.int64], pixels: Pixels) -> None:
        self.source, self.rows, self.size = source, rows, pixels.image_size
        self.transform = pixels.build_transform()

    def __len__(self) -> int:
        return len(self.rows)

    def count_workers(self, cores: int) -> int:
        """See `TrainSet`: all; an image takes a core milliseconds."""
        return cores

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        images = torch.empty(len(indices), 3, self.size, self.size)
        masks = torch.empty(len(indices), self.size, self.size, dtype=torch.int64)
        for place, index in enumerate(indices):
            image, mask = self.source.load(int(self.rows[index]))
            images[place] = self.transform(image)
            square = crop_centre(Image.fromarray(mask.astype(np.int32)), self.size, Image.Resampling.NEAREST)
            masks[place] = torch.from_numpy(np.array(square, np.int64))
        return images, masks


def decode_mask(encoded: bytes) -> NDArray[np.int64]:
    """Return the numbers of a mask's pixels [height, width]. Raises DataError with the fault alone."""
    try:
        with Image.open(io.BytesIO(encoded)) as mask:
            if mask.mode not in _GREY:
                raise DataError(
                    f"it is in colour ({mask.mode}); accepted is one number for each pixel, its class: grey, or a "
                    "palette (PNG)"
                )
            return np.array(mask).astype(np.int64)
    except DataError:
        raise
    except UnidentifiedImageError as error:
        raise DataError("not an image") from error
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and others
        raise DataError(explain(error)) from error


def find_masked(folder: Path, root: Path, classes: int, ignored: int | None) -> MaskedSource:
    """Return the images folder/images/** and their masks folder/masks/**, which have the same names but for the suffix.
    Raises DataError for images without a mask."""
    images, masks = list_images(folder / IMAGES), list_images(folder / MASKS)
    by_name = {path.relative_to(folder / MASKS).with_suffix("").as_posix(): path for path in masks}
    names = [path.relative_to(folder / IMAGES).with_suffix("").as_posix() for path in images]
    if missing := [name for name in names if name not in by_name]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise DataError(f"{folder / MASKS} has no mask for {', '.join(missing[:3])}{more}: it is called as the image.")
    none, numbers = np.zeros(len(images), np.int64), tuple(map(str, range(classes)))
    first = FolderImages(root, [str(path) for path in images], none, numbers)
    second = FolderImages(root, [str(by_name[name]) for name in names], none, numbers)
    return MaskedSource(first, second, classes, ignored)


def validate_masks(pixels: Pixels, augment: Augmentation) -> list[Problem]:
    """Return what is set of images that would not be done to their masks."""
    problems = []
    if augment.kind != "none":
        problems.append(Problem("augment.kind", "changes images and not their masks: leave it out", augment.kind))
    if pixels.crop_pct is not None:
        problems.append(Problem("crop_pct", "cuts images and not their masks: leave it out", pixels.crop_pct))
    return problems
