"""Images with masks: the class of each pixel, as an image of the same size whose pixels are numbers of classes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ablate.config.errors import DataError, Problem
from ablate.config.formatting import join_first
from ablate.config.lazy import torch
from ablate.data.base import IGNORED, Batch, BatchDataset
from ablate.data.files import identify_file, remember
from ablate.data.images.augment import Augmentation
from ablate.data.images.pixels import TURNS, Pixels, crop_centre, decode
from ablate.data.images.sources import FolderImages, ImageSource, list_images
from ablate.data.progress import show_progress

IMAGES, MASKS = "images", "masks"
"""The folders of a set."""
_GREY = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")
"""Pillow's modes with one number for each pixel, which is the index in a palette."""
_UNKNOWN = -1
_SHOWN = 10
"""Number of pixel values that a message names."""


@dataclass(frozen=True)
class MaskCounts:
    """The pixels of the masks of a source."""

    pixels: Mapping[int, int]
    """Value of a pixel -> how many pixels of all masks have it, in ascending order."""
    first: Mapping[int, int]
    """Value of a pixel -> the row of the first mask that has it."""
    turned: int
    """Number of masks that are turned with their images, since they have no orientation of their own."""


@dataclass(frozen=True)
class MaskedSource:
    """Images and their masks, row by row."""

    images: ImageSource
    masks: ImageSource
    classes: int
    """Number of classes."""
    ignored: int | None = None
    """The pixel value without a class, which is not trained on."""
    values: Mapping[int, int | None] = field(default_factory=dict)
    """Pixel value -> its class, or None for no class. It overrides `ignored`. Empty: pixels are 0 to classes - 1."""

    def __len__(self) -> int:
        return len(self.images)

    def find_class(self, pixel: int) -> int | None:
        """Return the class of a pixel, `IGNORED` if it is none; None for a pixel that has no meaning."""
        if pixel in self.values:
            return IGNORED if (number := self.values[pixel]) is None else number
        if pixel == self.ignored:
            return IGNORED
        return pixel if not self.values and 0 <= pixel < self.classes else None

    def load(self, row: int) -> tuple[Image.Image, NDArray[np.int64]]:
        """Return the image in RGB and its mask [height, width], `IGNORED` where there is no class. Raises DataError
        that names a mask that does not fit."""
        image, mask, _ = self._open(row)
        pixels = np.asarray(mask).astype(np.int64)
        classes = self._table[np.clip(pixels, -1, len(self._table) - 1)]
        if self.ignored is not None and self.ignored not in self.values:
            classes[pixels == self.ignored] = IGNORED
        if (unknown := classes == _UNKNOWN).any():
            raise DataError(self._explain_pixel(int(pixels[unknown][0]), row, np.unique(pixels).tolist()))
        return image, classes

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        """The class of each pixel from 0 on; after them, and so also at -1, that of others."""
        classes = [self.find_class(pixel) for pixel in range(max(self.values or [self.classes - 1]) + 1)]
        return np.array([_UNKNOWN if number is None else number for number in [*classes, None]], np.int64)

    def _open(self, row: int) -> tuple[Image.Image, Image.Image, bool]:
        """Return an image and its mask, both upright, and whether the mask was turned with the image."""
        image, mask = self.images.load_image(row), self._open_mask(row)
        turn = None if mask.info["orientation"] else TURNS.get(image.info["orientation"])
        turned = mask if turn is None else mask.transpose(turn)
        if turned.size == image.size:  # otherwise it may be one of the upright image
            mask = turned
        if mask.size != image.size:
            raise DataError(
                f"The mask {self.masks.name(row)} has {mask.width} x {mask.height} pixels, and its image "
                f"{self.images.name(row)} {image.width} x {image.height}: a mask has the size of its image."
            )
        return image, mask, turn is not None and mask is turned

    def _open_mask(self, row: int) -> Image.Image:
        try:
            return decode(self.masks.read(row), _keep_numbers)
        except DataError as error:
            raise DataError(f"The mask {self.masks.name(row)} cannot be read: {error}") from error

    # ------------------------------------------------------------------------------------------------ before training

    def count(self, key: str, cache: Path, check: bool) -> MaskCounts:
        """Return the counts of the pixels of all masks, kept in `cache` until their files change; `key` names them
        there. If `check`, each image is opened as well and compared with its mask. Raises DataError with the first
        faults."""
        files = [*self.images.files(), *self.masks.files()]
        key = f"{key}, pixels of masks{' beside their images' if check else ''}"
        (text,) = remember(key, files, cache, partial(self._count_all, check)) if files else self._count_all(check)
        pixels, turned = json.loads(text)
        return MaskCounts({p: n for p, n, _ in pixels}, {p: row for p, _, row in pixels}, turned)

    def _count_all(self, check: bool) -> list[str]:
        counts: Counter[int] = Counter()
        first: dict[int, int] = {}
        faults: list[str] = []
        turned = 0
        with (
            ThreadPoolExecutor(os.cpu_count()) as pool,
            show_progress("counting the pixels of masks, once for all runs", len(self), "masks") as advance,
        ):
            for row, found in enumerate(pool.map(partial(self._count_row, check), range(len(self)))):
                if isinstance(found, str):
                    faults.append(found)
                else:
                    pixels, was_turned = found
                    counts.update(pixels)
                    turned += was_turned
                    for pixel in pixels:
                        first.setdefault(pixel, row)
                advance(row + 1)
        if faults:
            count = "1 mask does" if len(faults) == 1 else f"{len(faults)} masks do"
            raise DataError("\n".join([f"{count} not fit:", *(f"  {fault}" for fault in faults[:5])]))
        return [json.dumps([[(pixel, counts[pixel], first[pixel]) for pixel in sorted(counts)], turned])]

    def _count_row(self, check: bool, row: int) -> tuple[dict[int, int], bool] | str:
        """Return how often each pixel occurs in a mask, and whether it was turned with its image; or its fault."""
        try:
            _, mask, turned = self._open(row) if check else (None, self._open_mask(row), False)
        except DataError as error:
            return str(error)
        values = np.asarray(mask).ravel().astype(np.int64)
        if values.min() < 0 or values.max() > 1 << 16:
            pixels, counts = np.unique(values, return_counts=True)
        else:  # many times faster
            counts = np.bincount(values)
            pixels = np.flatnonzero(counts)
            counts = counts[pixels]
        return dict(zip(pixels.tolist(), counts.tolist(), strict=True)), turned

    def check_pixels(self, counts: MaskCounts) -> None:
        """Raise DataError for a pixel that has no meaning."""
        for pixel in counts.pixels:
            if self.find_class(pixel) is None:
                raise DataError(self._explain_pixel(pixel, counts.first[pixel], list(counts.pixels)))

    def describe_ignored(self, counts: Sequence[MaskCounts]) -> str:
        """Return the share of the pixels without a class, as a part of a description: of the training masks, and of
        the validation masks where these are separate; "" if all have a class."""
        shares = []
        for one, what in zip(counts, ("the pixels", "those to validate on"), strict=False):
            ignored = sum(count for pixel, count in one.pixels.items() if self.find_class(pixel) == IGNORED)
            shares += [f"{ignored / sum(one.pixels.values()):.1%} of {what}"] if ignored else []
        return f", {' and '.join(shares)} ignored" if shares else ""

    def check_classes(self, counts: MaskCounts, trained: MaskCounts | None = None) -> None:
        """Raise DataError if a class that `values` does not name never occurs, or if only one class occurs: the pixels
        of the masks then mean something else than the settings say. Validation masks, checked after the training masks
        `trained`, may lack a class if no pixel is ignored, and may have a single class if `values` names more."""
        there, wanted = self._list_classes(counts), {*range(self.classes)} - {*self.values.values()}
        if trained:
            is_ignoring = any(self.find_class(pixel) == IGNORED for pixel in counts.pixels)
            wanted &= self._list_classes(trained) if is_ignoring else set()
        missing = sorted(wanted - there - (set() if self.values else {self.ignored}))
        if not missing and (len(there) > 1 or (trained and self.values)):
            return
        if trained and not there:  # refused where any set has no targets
            return
        masks = f"{len(self):,} masks to {'validate' if trained else 'train'} on"
        if missing:
            names = f"Class {missing[0]} is" if len(missing) == 1 else f"Classes {join_first(missing, _SHOWN)} are"
            fault = f"{names} in none of the {masks}"
        else:
            fault = f"The {masks} have {'one class alone' if there else 'no class'}"
        total = sum(counts.pixels.values())
        shares = [
            f"{pixel} ({count / total:.1%}{', ignored' if self.find_class(pixel) == IGNORED else ''})"
            for pixel, count in counts.pixels.items()
        ]
        advice = "There must be pixels of at least two"
        if trained:
            known = {pixel: self.find_class(pixel) for pixel in sorted({*trained.pixels, *counts.pixels})}
            meant = {pixel: None if number == IGNORED else number for pixel, number in known.items()}
            advice = f"Say what each pixel is: data.mask_values='{json.dumps(meant)}'"
            advice += ", with a class in place of null where it is one" if None in meant.values() else ""
        elif len(counts.pixels) > 1:
            advice = (
                f"Set the class of each pixel: {_suggest_values(counts.pixels)} (null: no class; one that is named may"
            )
            advice += " be missing)"
        if not trained and len(there) > 1 and there == set(range(len(there))):
            advice += f", or if there are fewer classes, data.mask_classes={len(there)}"
        raise DataError(f"{fault}, whose pixels are {join_first(shares, _SHOWN)}. {advice}.")

    def _list_classes(self, counts: MaskCounts) -> set[int | None]:
        return {self.find_class(pixel) for pixel in counts.pixels} - {IGNORED, None}

    def _explain_pixel(self, pixel: int, row: int, found: Sequence[int]) -> str:
        if self.values:
            there = f"{join_first(found, _SHOWN)} are in the masks"
            text = f"which data.mask_values does not name. Add its class there (null: no class): {there}"
            return f"The mask {self.masks.name(row)} has the pixel {pixel}, {text}."
        return (
            f"The mask {self.masks.name(row)} has the class {pixel}, and data.mask_classes is {self.classes}: 0 to "
            f"{self.classes - 1}. Raise data.mask_classes, give the number that is no class as data.ignored, or the "
            f"class of each pixel: {_suggest_values(found)}."
        )


def _suggest_values(pixels: Iterable[int]) -> str:
    """Return a setting that makes a class of each of the pixels."""
    pairs = [f'"{pixel}": {number}' for number, pixel in enumerate(pixels)]
    return f"data.mask_values='{{{', '.join(pairs[:_SHOWN])}{', ...' if len(pairs) > _SHOWN else ''}}}'"


class MaskedImages(BatchDataset):
    """The `rows` of a source: float32 [batch, 3, size, size] and the class of each pixel, int64 [batch, size, size].
    The centre square of both is resized, that of a mask by the nearest pixel."""

    def __init__(self, source: MaskedSource, rows: NDArray[np.int64], pixels: Pixels) -> None:
        self.source, self.rows, self.size = source, rows, pixels.image_size
        self.transform = pixels.build_transform()

    def __len__(self) -> int:
        return len(self.rows)

    def count_workers(self, cores: int) -> int:
        """See `BatchDataset`: all; an image takes a core milliseconds."""
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


def _keep_numbers(mask: Image.Image) -> Image.Image:
    """Return the mask as it is. Raises DataError where its pixels are not numbers."""
    if mask.mode not in _GREY:
        raise DataError(
            f"it is in colour ({mask.mode}); accepted is one number for each pixel, its class: grey, or a palette (PNG)"
        )
    return mask.copy()


def find_masked(images_folder: Path, masks_folder: Path, root: Path) -> tuple[FolderImages, FolderImages]:
    """Return the images images_folder/** and their masks masks_folder/**, which have the same names but for the suffix;
    an image that a link names again is left out. Raises DataError with the names of those that do not belong
    together."""
    images, masks = dict[str, list[Path]](), dict[str, list[Path]]()
    for folder, groups in ((images_folder, images), (masks_folder, masks)):
        for path in list_images(folder):
            groups.setdefault(path.relative_to(folder).with_suffix("").as_posix(), []).append(path)
    pairs: dict[object, tuple[Path, Path]] = {}
    faults: dict[str, list[str]] = {"no mask": [], "several masks": [], "several images": [], "no image": []}
    for name in sorted(images.keys() | masks.keys()):
        of_image, of_mask = images.get(name, []), masks.get(name, [])
        if len(of_image) == 1 and len(of_mask) == 1:
            first, mask = pairs.setdefault(identify_file(of_image[0]), (of_image[0], of_mask[0]))
            if identify_file(mask) != identify_file(of_mask[0]):
                faults["several masks"].append(f"{first} and {of_image[0]} are one file ({mask}, {of_mask[0]})")
        if not of_mask or not of_image:
            faults["no image" if of_mask else "no mask"].append(name)
        if len(of_mask) > 1:
            faults["several masks"].append(f"{name} ({', '.join(path.name for path in of_mask)})")
        if len(of_image) > 1:
            faults["several images"].append(f"{name} ({', '.join(path.name for path in of_image)})")
    if told := [f"  {kind} for {join_first(names, _SHOWN)}" for kind, names in faults.items() if names]:
        text = (
            f"Images in {images_folder} and masks in {masks_folder} do not belong together, one to one by their names:"
        )
        raise DataError("\n".join([text, *told]))
    none = np.zeros(len(pairs), np.int64)
    sides = ([str(path) for path in paths] for paths in zip(*pairs.values(), strict=True))
    first_side, second_side = (FolderImages(root, paths, none, ("",)) for paths in sides)
    return first_side, second_side


def validate_masks(pixels: Pixels, augment: Augmentation) -> list[Problem]:
    """Return the problems with settings that change images but not their masks."""
    problems = []
    if augment.kind != "none":
        problems.append(Problem("augment.kind", "changes images and not their masks: leave it out", augment.kind))
    if pixels.crop_pct is not None:
        problems.append(Problem("crop_pct", "cuts images and not their masks: leave it out", pixels.crop_pct))
    return problems
