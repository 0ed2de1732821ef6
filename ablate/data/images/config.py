"""Images in folders, in tables and in datasets of the hub, with classes or masks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from ablate.config.base import Config, Names
from ablate.config.errors import DataError, Problem
from ablate.data.base import BatchDataset, Corpus, DataConfig, data_kinds
from ablate.data.files import expand_path, find_files
from ablate.data.images.augment import Augmentation, augmentations
from ablate.data.images.batches import EncodedImages
from ablate.data.images.masks import (
    IMAGES,
    MASKS,
    MaskCounts,
    MaskedImages,
    MaskedSource,
    find_masked,
    validate_masks,
)
from ablate.data.images.pixels import Pixels
from ablate.data.images.sources import (
    TASKS,
    ImageSource,
    Targets,
    check_apart,
    check_same_classes,
    find_images,
    find_layout,
    fingerprint_images,
    list_folders,
)
from ablate.data.images.tables import (
    SUFFIXES,
    TableImages,
    TableMasks,
    check_column,
    get_split,
    load_files,
    load_splits,
)
from ablate.data.overlap import check_overlap, measure_items
from ablate.data.splits import find_splits, split
from ablate.tracking.remote_files import fetch_all, is_url

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


class EncodedImagesConfig(Pixels, DataConfig):
    """Fields of the kinds of data whose images are decoded during training."""

    task: ClassVar[str] = "image_classification"
    augment: Annotated[Augmentation, augmentations] = Field("none", validate_default=True)
    """The data augmentation of training images: none, timm, or convnext, ConvNeXt's recipe."""
    check: bool = True
    """Whether every image is decoded once before the first training, to find broken images early. false: the images are
    only read once, for the fingerprint; training stops at a broken image and names it."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (3, self.image_size, self.image_size)

    def validate(self, batch: int) -> list[Problem]:  # type: ignore[override]
        problems = [problem.within("augment") for problem in self.augment.validate(batch)]
        return problems + (validate_masks(self, self.augment) if self.default_task == TASKS["mask"] else [])

    def build_corpus(
        self,
        source: ImageSource | MaskedSource,
        val_source: ImageSource | MaskedSource | None,
        key: str,
        cache: Path,
        note: str,
    ) -> Corpus:
        """Build the corpus of images, or of images with masks, with a part of them held out if there is no validation
        source. `key` names the images in `cache`, `note` ends the description."""
        if val_source is None:
            train, val = split(len(source), self.val_fraction, self.split_seed, "images")
        else:
            train, val = np.arange(len(source)), np.arange(len(val_source))
        sources = [source] if val_source is None else [source, val_source]
        masked = [one for one in sources if isinstance(one, MaskedSource)]
        counts = [one.count(key, cache, self.check) for one in masked]
        if masked:
            self._check_masks(masked, counts)
        sides = [[one.images, one.masks] if isinstance(one, MaskedSource) else [one] for one in sources]
        check = self.check and not masked  # masks are counted beside their images
        fingerprint, hashes = fingerprint_images([part for side in sides for part in side], key, cache, check)
        given = hashes if val_source is None else hashes[sum(map(len, sides[0])) :]
        images, size = sides[0][0], self.image_size
        overlap = measure_items(
            hashes[train].tolist(), given[val].tolist(), lambda number: sides[-1][0].name(int(val[number]))
        )
        shared = check_overlap(overlap, self.max_overlap, "the validation images", held_out=val_source is None)
        if masked:
            with_masks, classes, ignored = " with masks", masked[0].classes, masked[0].describe_ignored(counts)
            padded = masked[0].ignored is not None or None in masked[0].values.values()
        else:
            with_masks, classes, ignored, padded = "", len(images.classes), "", False
        return Corpus(
            train=self._build_dataset(source, train, self.augment),
            val=self._build_dataset(val_source or source, val),
            fingerprint=fingerprint,
            classes=classes,
            shape=(3, size, size),
            bytes_per_token=None,
            description=f"{self.kind}: {len(train):,} training and {len(val):,} validation images of {size} x {size}"
            f"{with_masks}{self._describe_enlarged(images)}{shared}, {classes:,} classes{ignored}{note}",
            padded=padded,
        )

    def _check_masks(self, sources: Sequence[MaskedSource], counts: Sequence[MaskCounts]) -> None:
        """Raise DataError for masks that do not fit the classes; warn of those that are turned with their images."""
        for one, counted in zip(sources, counts, strict=True):
            one.check_pixels(counted)
        sources[0].check_classes(counts[0])
        for one, counted in zip(sources[1:], counts[1:], strict=True):
            one.check_classes(counted, trained=counts[0])
        if turned := sum(counted.turned for counted in counts):
            logger.warning(
                f"{turned:,} masks have no EXIF orientation of their own and are turned with their images; orientation "
                "1 keeps a mask as it is."
            )

    def _describe_enlarged(self, source: ImageSource) -> str:
        """Return a note if the first image is smaller than `image_size`: enlarging costs time and adds nothing."""
        try:
            image = source.load_image(0)
        except DataError:  # training names it when it is reached
            return ""
        if max(image.size) >= self.image_size:
            return ""
        return f" (enlarged: the first is {image.width} x {image.height}; set data.image_size={max(image.size)})"

    def _build_dataset(
        self, source: ImageSource | MaskedSource, rows: NDArray[np.int64], augment: Augmentation | None = None
    ) -> BatchDataset:
        if isinstance(source, MaskedSource):
            return MaskedImages(source, rows, self)
        return EncodedImages(source, rows, self, augment)


MOST_CLASSES = 255
"""Most classes of masks."""


def _read_keys(values: Any) -> Any:
    """Return a mapping whose keys are numbers, which settings have as text."""
    if not isinstance(values, Mapping):
        return values
    return {int(key) if isinstance(key, str) and key.isdecimal() else key: value for key, value in values.items()}


class MaskSettings(Config):
    """The meaning of the pixels of masks."""

    mask_classes: int | None = Field(None, ge=2, le=MOST_CLASSES)
    """The number of classes in the masks: pixels are 0 to mask_classes - 1. Needed where there are masks, unless
    `mask_values` says it. Each class must occur in the masks to train on, and where pixels are ignored in those to
    validate on, unless `mask_values` names it."""
    ignored: int | None = 255
    """The pixel value without a class, which is not trained on. None: every pixel has a class."""
    mask_values: Annotated[dict[Annotated[int, Field(ge=0, le=65535)], int | None], BeforeValidator(_read_keys)] = {}
    """Pixel of a mask -> its class, such as {"0": 0, "255": 1}, where pixels are not the numbers of classes; null: no
    class, not trained on. It has precedence over `ignored`; any other pixel is refused. A class that it names may be
    missing from the masks."""

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # a mapping has none of its own

    def list_mask_problems(self) -> list[Problem]:
        """Return the problems of these fields where there are masks."""
        classes = [number for number in self.mask_values.values() if number is not None]
        if not (self.mask_classes or classes):
            return [Problem("mask_classes", "is required where there are masks: the number of classes")]
        if outside := [number for number in classes if not 0 <= number < (self.mask_classes or MOST_CLASSES)]:
            text = f"must map to null or to classes from 0 to {(self.mask_classes or MOST_CLASSES) - 1}"
            return [Problem("mask_values", text, outside[0])]
        return []

    def open_masks(self, images: ImageSource, masks: ImageSource) -> MaskedSource:
        """Return the images with their masks."""
        classes = self.mask_classes or 1 + max(number or 0 for number in self.mask_values.values())
        return MaskedSource(images, masks, classes, self.ignored, self.mask_values)


@data_kinds.register
class MaskFolder(MaskSettings, EncodedImagesConfig):
    """Images of one's own with masks: root/images/** and root/masks/**, or the two in root/train and root/val, or train
    and val in the two.

    A mask has the name and the size of its image, and one number for each pixel, its class: grey, or a palette. An
    image is turned as its EXIF orientation says, and with it a mask that has no orientation of its own and the size of
    the stored image. The folders of splits may have other usual names, such as valid, Training or train_images; without
    one for validation a part of the images is held out.
    """

    kind: Literal["mask_folder"] = "mask_folder"
    task: ClassVar[str] = TASKS["mask"]
    root: str = Field(min_length=1)
    """The folder, relative to the current directory."""

    def validate(self, batch: int) -> list[Problem]:  # type: ignore[override]
        return [*super().validate(batch), *self.list_mask_problems()]

    def load(self, cache: Path) -> Corpus:
        root = expand_path(self.root)
        own = all((root / name).is_dir() for name in (IMAGES, MASKS))
        if not own and (layout := find_layout(root)).note:
            note = layout.note
            folders = [(folder / IMAGES, folder / MASKS) for folder in (layout.train, layout.val) if folder]
        else:
            layout = find_layout(root / IMAGES, holds_folders=False)
            inside = [folder for folder in (layout.train, layout.val) if folder]
            folders = [(folder, root / MASKS / folder.relative_to(root / IMAGES)) for folder in inside]
            beside = [f"{name}/" for name in list_folders(root) if name not in (IMAGES, MASKS)]
            note = layout.note + (f"; not read beside images/ and masks/: {', '.join(beside)}" if beside else "")
        pairs = [find_masked(*pair, root) for pair in folders]
        if len(pairs) > 1:
            check_apart(pairs[0][0], pairs[1][0])
        source, *val = [self.open_masks(*pair) for pair in pairs]
        key = f"images and masks below {root}"
        return self.build_corpus(source, val[0] if val else None, key, cache, note)


@data_kinds.register
class ImageFolder(EncodedImagesConfig):
    """Your own images in one folder for each class: root/CLASS/*.jpg, or root/train/CLASS and root/val/CLASS.

    The folders of splits may have other usual names, such as valid, Training or train_images; without one for
    validation a part of the training images is held out, and a test set is never read. Links to folders are
    followed, an image is turned as its EXIF orientation says, and one that links name twice is read once.

    Accepted are jpg, png, webp, bmp, gif (the first frame), tif, jp2, avif, ppm, tga and their other suffixes; other
    files are left out and reported.
    """

    kind: Literal["image_folder"] = "image_folder"
    root: str = Field(min_length=1)
    """The folder, relative to the current directory."""

    def load(self, cache: Path) -> Corpus:
        if is_url(self.root):
            text = (
                "copy it to this machine, or use data=image_files, whose parquet and arrow files may be at an address"
            )
            raise DataError(f"The folder {self.root} is an address, and folders are not downloaded: {text}.")
        root = expand_path(self.root)
        layout = find_layout(root)
        images, val_images = find_images(layout.train, root), None
        if layout.val is not None:
            val_images = find_images(layout.val, root)
            check_same_classes(images.classes, val_images.classes, str(layout.train), str(layout.val))
            check_apart(images, val_images)
        return self.build_corpus(images, val_images, f"images below {root}", cache, layout.note)


class ImageTableConfig(MaskSettings, EncodedImagesConfig):
    """Fields of the kinds of data whose images are in the rows of tables."""

    targets: Targets = "class"
    """The targets of an image: its class, or a mask, an image in `mask_column`."""
    mask_column: str | None = None
    """The column of the masks. None: mask."""

    image_column: str | None = None
    """The column of the images. None: the only column of that type, or the column image."""
    label_column: str | None = None
    """The column of the labels: class labels, integers or text. None: the only one of class labels, or label."""

    @property
    def default_task(self) -> str:
        return TASKS[self.targets]

    def validate(self, batch: int) -> list[Problem]:  # type: ignore[override]
        problems = super().validate(batch)
        if self.targets == "mask":
            problems += self.list_mask_problems()
        return problems

    def build_from_splits(
        self, splits: Mapping[str, Dataset], train_split: str, val_split: str | None, what: str, cache: Path
    ) -> Corpus:
        """Build the corpus of two splits, or of one where `val_split` is None; `what` is what messages call the
        dataset."""
        read = [name for name in (train_split, val_split) if name is not None]
        others = ", ".join(name for name in splits if name not in read)
        note = f"; read: {', '.join(read)}; not read: {others}" if others else ""
        if self.targets == "mask":
            sources = []
            for role, name in zip(("train", "validation"), read, strict=False):
                data, own = get_split(splits, name, what), f"{what}, split {name}"
                column = self.mask_column or check_column(data, "mask", own, "data.mask_column")
                image = self.image_column or ("image" if "image" in data.column_names else None)
                pair = TableMasks(data, role, own, image), TableMasks(data, role, own, column)
                sources.append(self.open_masks(*pair))
            key = f"images in {self.image_column} with masks in {self.mask_column or 'mask'}"
            return self.build_corpus(sources[0], sources[1] if val_split else None, key, cache, note)
        columns = (self.image_column, self.label_column)
        train_what = f"{what}, split {train_split}"
        images = TableImages(get_split(splits, train_split, what), "train", train_what, *columns)
        val_images = None
        if val_split is not None:
            val_data, val_what = get_split(splits, val_split, what), f"{what}, split {val_split}"
            val_images = TableImages(val_data, "validation", val_what, *columns, images.classes)
        key = f"images in {images.image_column} with {images.label_column}"
        return self.build_corpus(images, val_images, key, cache, note)


@data_kinds.register
class ImageDataset(ImageTableConfig):
    """Images of a dataset on the Hugging Face hub, or of a local copy in a folder. Read by `datasets`, memory-mapped;
    downloads are kept in the cache of `datasets` (HF_HOME).
    """

    kind: Literal["image_dataset"] = "image_dataset"
    dataset: str = Field(min_length=1)
    """A name on the hub, such as ILSVRC/imagenet-1k, or a folder: a copy of a hub dataset, or the output of
    save_to_disk."""
    subset: str | None = None
    """The configuration (subset) of a hub dataset that has several."""
    train_split: str = "train"
    """The split for training."""
    val_split: str | None = None
    """The split for validation. None: the one that is called validation, val, valid or dev, in any case; otherwise a
    part of the training split is held out. A split called test or eval is only read if it is named here."""

    def load(self, cache: Path) -> Corpus:
        splits = load_splits(self.dataset, self.subset, cache)
        what = f"the dataset {self.dataset}"
        usual = {} if self.val_split and self.train_split in splits else find_splits(splits, what)
        train_split = self.train_split if self.train_split in splits else usual.get(self.train_split, self.train_split)
        return self.build_from_splits(splits, train_split, self.val_split or usual.get("validation"), what, cache)


@data_kinds.register
class ImageFiles(ImageTableConfig):
    """Images in your own parquet or arrow files, with a column of images and a column of labels."""

    kind: Literal["image_files"] = "image_files"
    files: Names = Field(min_length=1)
    """The files, or globs, relative to the current directory."""
    val_files: Names = ()
    """The files of the validation set; without them, a part of the images is held out."""

    def load(self, cache: Path) -> Corpus:
        patterns_by_split = {"train": self.files, "validation": self.val_files}
        files = {
            name: find_files(
                fetch_all(patterns, cache), lambda path: path.suffix.lower() in SUFFIXES, ", ".join(SUFFIXES)
            )
            for name, patterns in patterns_by_split.items()
            if patterns
        }
        val_split = "validation" if self.val_files else None
        return self.build_from_splits(load_files(files, cache), "train", val_split, "the table of data.files", cache)


data_kinds.preset("imagenet", "image_dataset", dataset="ILSVRC/imagenet-1k", crop_pct=0.875, check=False)
_CIFAR: dict[str, Any] = {"image_size": 32, "mean": [0.4914, 0.4822, 0.4465], "std": [0.247, 0.2435, 0.2616]}
data_kinds.preset("cifar10", "image_dataset", dataset="uoft-cs/cifar10", **_CIFAR)
data_kinds.preset("cifar100", "image_dataset", dataset="uoft-cs/cifar100", label_column="fine_label", **_CIFAR)
