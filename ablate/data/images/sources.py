"""Sources of images: encoded images with labels by row, checked and hashed once, and folders of them."""

from __future__ import annotations

import hashlib
import logging
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ablate.config.errors import DataError, did_you_mean
from ablate.config.formatting import join_first
from ablate.data.files import explain, identify_file, remember
from ablate.data.images.pixels import decode
from ablate.data.progress import show_progress
from ablate.data.splits import find_splits

logger = logging.getLogger(__name__)

Targets = Literal["class", "mask"]

TASKS = {"class": "image_classification", "mask": "image_segmentation"}
"""Targets -> the task that they are for."""


BLOCK = 4096
"""Number of images that are queued for the thread pool at a time."""


class ImageSource(ABC):
    """Encoded images with labels, read by row in any order, also by other processes."""

    labels: NDArray[np.int64]
    """The index of each row's class in `classes`, [n]."""
    classes: tuple[str, ...]
    """The names of the classes."""

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def read(self, row: int) -> bytes:
        """Return the encoded image. Raises DataError with the cause, without the image's name."""

    @abstractmethod
    def name(self, row: int) -> str:
        """Return the image's name in messages."""

    @abstractmethod
    def identity(self, row: int) -> str:
        """Return the text that enters the fingerprint besides the bytes of the image; it does not depend on the
        location of the corpus."""

    @abstractmethod
    def files(self) -> list[Path]:
        """Return the files whose sizes and modification times show whether images have changed; none if there are no
        such files."""

    def load_image(self, row: int) -> Image.Image:
        """Return the decoded image in RGB. Raises DataError that names it."""
        try:
            return decode(self.read(row))
        except DataError as error:
            raise DataError(f"The image {self.name(row)} cannot be decoded: {error}") from error


def fingerprint_images(
    sources: Sequence[ImageSource], what: str, cache: Path, check: bool
) -> tuple[str, NDArray[np.uint64]]:
    """Return the SHA-256 over the bytes and the identities of all images, and a hash of the bytes of each, [images]; if
    `check`, every image is decoded as well. The result is kept in `cache` until one of the files changes; `what`
    identifies it there. A long pass reports its progress on stderr. Raises DataError that names broken images.
    """
    files = [file for source in sources for file in source.files()]
    key = f"{what}, checked, each" if check else f"{what}, each"
    digest, hashes = (
        remember(key, files, cache, lambda: _hash_images(sources, check)) if files else _hash_images(sources, check)
    )
    return digest, np.frombuffer(bytes.fromhex(hashes), np.uint64)


def _hash_images(sources: Sequence[ImageSource], check: bool) -> list[str]:
    """Return [the SHA-256 over all images, the first 8 bytes of that of each image], hexadecimal. Raises DataError."""
    digest, hashes = hashlib.sha256(), []
    broken: list[str] = []
    total, done = sum(map(len, sources)), 0
    verb = "checking" if check else "hashing"
    with (
        ThreadPoolExecutor(os.cpu_count()) as pool,
        show_progress(f"{verb}, once for all runs", total, "images") as advance,
    ):
        blocks = (
            (source, range(start, min(start + BLOCK, len(source))))
            for source in sources
            for start in range(0, len(source), BLOCK)
        )
        for source, rows in blocks:
            for row, (content, fault) in zip(rows, pool.map(partial(_check_image, source, check), rows), strict=True):
                digest.update(f"{source.identity(row)}\0{content}".encode())
                hashes.append(content[:16])
                broken += [f"  {source.name(row)}: {fault}"] if fault else []
            done += len(rows)
            advance(done)
    if broken:
        count = "1 image" if len(broken) == 1 else f"{len(broken)} images"
        more = ["  ..."] if len(broken) > 5 else []
        raise DataError("\n".join([f"{count} cannot be decoded:", *broken[:5], *more]))
    return [digest.hexdigest(), "".join(hashes)]


def _check_image(source: ImageSource, check: bool, row: int) -> tuple[str, str | None]:
    """Return (SHA-256 of the encoded image, its error or None)."""
    try:
        content = source.read(row)
        if check:
            decode(content)
    except DataError as error:
        return "", str(error)
    return hashlib.sha256(content).hexdigest(), None


def check_same_classes(train: Sequence[str], val: Sequence[str], where: str, val_where: str) -> None:
    """Raise DataError if training and validation have different classes."""
    missing, extra = sorted(set(train) - set(val)), sorted(set(val) - set(train))
    faults = []
    if missing:
        faults.append(f"{val_where} lacks {join_first(missing, 10)}.")
    if extra:
        hint = did_you_mean(extra[0], missing)
        faults.append(f"{where} lacks {join_first(extra, 10)}.{hint}")
    if faults:
        raise DataError(" ".join(["Training and validation have different classes.", *faults]))


SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".bmp", ".dib", ".gif", ".tif", ".tiff"),
    *(".jp2", ".j2k", ".jpx", ".avif", ".ppm", ".pgm", ".pbm", ".pnm", ".tga"),
)
"""The image formats that Pillow reads without plugins. A fixed list, so that the files of a corpus do not depend on the
installed Pillow."""


class FolderImages(ImageSource):
    """The images below one folder, sorted by class and then by name."""

    def __init__(self, root: Path, paths: list[str], labels: NDArray[np.int64], classes: tuple[str, ...]) -> None:
        self.root, self.paths, self.labels, self.classes = root, paths, labels, classes

    def read(self, row: int) -> bytes:
        try:
            with open(self.paths[row], "rb") as file:
                return file.read()
        except OSError as error:
            raise DataError(explain(error)) from error

    def name(self, row: int) -> str:
        return self.paths[row]

    def identity(self, row: int) -> str:
        return Path(self.paths[row]).relative_to(self.root).as_posix()

    def files(self) -> list[Path]:
        return [Path(path) for path in self.paths]


@dataclass(frozen=True)
class Layout:
    """The folders of a set of images."""

    train: Path
    val: Path | None
    """None: a part of the training images is held out."""
    note: str
    """Which folders are read and which are not, to add to a description; "" if there are no splits."""


def find_layout(root: Path, holds_folders: bool = True) -> Layout:
    """Return the layout of `root`: itself, or its folders with a usual name of a split (`SPLITS`), in any case; the one
    of test is never read. `holds_folders`: whether the data of a split is in folders.

    Raises DataError for a missing root, for two folders of one split, and for a folder of a split where there is none
    to train on: it would be taken for a class.
    """
    if not os.path.isdir(root):
        raise DataError(f"There is no folder {root}" + (", only a file" if os.path.exists(root) else ""))
    names = list_folders(root)
    splits = find_splits(names, str(root))
    trains = "train" in splits and (not holds_folders or bool(list_folders(root / splits["train"])))
    # A class may be called "train" too, and then has images rather than folders.
    if not splits or (splits.keys() == {"train"} and len(names) > 1 and not trains):
        return Layout(root, None, "")
    if not trains:
        raise DataError(
            f"{root} has {', '.join(f'{name}/' for name in splits.values())}, called like a split, but no train/ "
            f"{'with a folder for each class' if holds_folders else 'to train on'}. Add it, or give the folder to "
            "train on as data.root; a class must have another name."
        )
    read = [splits[part] for part in ("train", "validation") if part in splits]
    other = [name for name in names if name not in read]
    note = f"; read: {', '.join(f'{name}/' for name in read)}"
    note += f"; not read: {', '.join(f'{name}/' for name in other)}" if other else ""
    return Layout(root / read[0], root / read[1] if len(read) > 1 else None, note)


def find_images(folder: Path, root: Path) -> FolderImages:
    """Return the images folder/CLASS/**, with the classes sorted by name; hidden files and folders are left out, links
    to folders are followed, and a file that links name again is read once. Their identities are the paths below `root`.

    Raises DataError for fewer than two classes, for a class without images, and for a file in two classes.
    """
    names = list_folders(folder)
    if not names:
        raise DataError(f"{folder} has no folders. Expected one for each class: {folder}/CLASS/*.jpg")
    if len(names) == 1:
        raise DataError(
            f"{folder} has only the class {names[0]!r}. A classifier needs at least two classes, each in its own "
            "folder."
        )
    paths: list[str] = []
    labels: list[int] = []
    empty: list[str] = []
    skipped: list[Path] = []
    owners: dict[object, tuple[int, Path]] = {}
    for label, name in enumerate(names):
        visible, files = sorted(_walk_files(folder / name)), []
        for file in filter(_is_image, visible):
            owner, first = owners.setdefault(identify_file(file), (label, file))
            if owner != label:
                raise DataError(f"{file} is by a link {first}, in another class: remove one of them.")
            files += [file] if first is file else []
        skipped += [file.relative_to(folder) for file in visible if not _is_image(file)]
        empty += [] if files else [name]
        paths += map(str, files)
        labels += [label] * len(files)
    if empty:
        raise DataError(f"No images in {folder} for: {', '.join(empty)}. Accepted: {', '.join(SUFFIXES)}.")
    if skipped:
        counts = Counter(file.suffix.lower() or "no suffix" for file in skipped)
        kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in counts.most_common(5))
        number = "1 file is" if len(skipped) == 1 else f"{len(skipped):,} files are"
        logger.warning(
            f"{folder}: {number} left out, since their formats are not read ({kinds}): {join_first(skipped, 5)}. "
            f"Accepted: {', '.join(SUFFIXES)}."
        )
    return FolderImages(root, paths, np.array(labels, np.int64), tuple(names))


def check_apart(train: FolderImages, val: FolderImages) -> None:
    """Raise DataError if a training image is also a validation image, by a link."""
    trained = {identify_file(path): path for path in train.files()}
    if shared := [(path, trained[key]) for path in val.files() if (key := identify_file(path)) in trained]:
        text = f"{len(shared):,} of the {len(val):,} validation images are links to training images"
        raise DataError(f"{text}, such as {shared[0][0]} to {shared[0][1]}: remove them from one of the two.")


def list_images(folder: Path) -> list[Path]:
    """Return the images below a folder, sorted by name; hidden files are left out. Raises DataError where there are
    none."""
    if not os.path.isdir(folder):
        raise DataError(f"There is no folder {folder}")
    files = sorted(file for file in _walk_files(folder) if _is_image(file))
    if not files:
        raise DataError(f"No images in {folder}. Accepted: {', '.join(SUFFIXES)}.")
    return files


def list_folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder that are not hidden, sorted. Raises DataError where it cannot be."""
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {explain(error)}") from error


def _walk_files(folder: Path) -> Iterator[Path]:
    """Yield the files below `folder` that are not hidden. Links to folders are followed, but to none that was entered
    before or that `folder` is in."""

    def complain(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be read: {explain(error)}") from error

    entered = {identify_file(above) for above in (*folder.parents, *folder.resolve().parents)}
    for parent, folders, files in os.walk(folder, onerror=complain, followlinks=True):
        if (key := identify_file(Path(parent))) in entered:
            folders.clear()
            continue
        entered.add(key)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in files if not name.startswith("."))


def _is_image(file: Path) -> bool:
    return file.name.lower().endswith(SUFFIXES)
