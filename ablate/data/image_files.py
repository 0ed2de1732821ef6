"""Folders of images: one folder for each class, found, checked and decoded."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ablate.data.files import reason, remembered
from ablate.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
VALIDATION_FOLDERS = ("val", "validation")
TEST_FOLDER = "test"

BLOCK = 4096
"""Images that wait for the pool of threads at a time."""


@dataclass(frozen=True)
class LabelledFiles:
    """The images below one folder, sorted by class and then by name."""

    paths: list[Path]
    labels: NDArray[np.int64]
    """The index of each path's class in `classes`, [n]."""
    classes: tuple[str, ...]


def find_layout(root: Path) -> tuple[Path, Path | None]:
    """(training folder, validation folder or None) of `root`, each of which holds one folder for each class.

    Raises DataError for a missing root.
    """
    if not os.path.isdir(root):
        raise DataError(f"There is no folder {root}" + (", only a file" if os.path.exists(root) else ""))
    train = root / "train"
    # A class may be called "train" too, and then has images rather than folders.
    if train.is_dir() and _folders(train):
        return train, next((root / name for name in VALIDATION_FOLDERS if (root / name).is_dir()), None)
    return root, None


def find_images(folder: Path) -> LabelledFiles:
    """The images folder/CLASS/**, with the classes sorted by name; hidden files and folders are left out.

    Raises DataError for fewer than two classes and for a class without images.
    """
    names = _folders(folder)
    if not names:
        raise DataError(f"{folder} has no folders. Expected one for each class: {folder}/CLASS/*.jpg")
    if len(names) == 1:
        raise DataError(f"{folder} has only the class {names[0]!r}. A classifier needs at least two, a folder each.")
    paths: list[Path] = []
    labels: list[int] = []
    empty = []
    for label, name in enumerate(names):
        found = sorted(_images(folder / name))
        empty += [] if found else [name]
        paths += found
        labels += [label] * len(found)
    if empty:
        raise DataError(f"No images in {folder} for: {', '.join(empty)}. Accepted: {', '.join(SUFFIXES)}.")
    return LabelledFiles(paths, np.array(labels, np.int64), tuple(names))


def _folders(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {reason(error)}") from error


def _images(folder: Path) -> Iterator[Path]:
    def complain(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be read: {reason(error)}") from error

    for parent, folders, files in os.walk(folder, onerror=complain):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield Path(parent, name)


def verified_fingerprint(paths: Sequence[Path], root: Path, cache: Path) -> str:
    """SHA-256 over the images' paths below `root` and their bytes; every image is decoded once on the way.

    What was found is kept in `cache` and holds until one of the files changes. Raises DataError naming broken images.
    """

    def compute() -> list[str]:
        digest = hashlib.sha256()
        broken: list[str] = []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for start in range(0, len(paths), BLOCK):
                block = paths[start : start + BLOCK]
                for path, (content, fault) in zip(block, pool.map(_check, block), strict=True):
                    digest.update(f"{path.relative_to(root).as_posix()}\0{content}".encode())
                    broken += [f"  {path}: {fault}"] if fault else []
        if broken:
            count = "1 image" if len(broken) == 1 else f"{len(broken)} images"
            more = ["  ..."] if len(broken) > 5 else []
            raise DataError("\n".join([f"{count} cannot be decoded:", *broken[:5], *more]))
        return [digest.hexdigest()]

    return remembered(f"images below {root}", paths, cache, compute)[0]


def _check(path: Path) -> tuple[str, str | None]:
    """(SHA-256 of the file, what is wrong with the image or None)."""
    try:
        content = path.read_bytes()
    except OSError as error:
        return "", reason(error)
    try:
        _rgb(io.BytesIO(content))
    except DataError as error:
        return "", str(error) if content else "empty file"
    return hashlib.sha256(content).hexdigest(), None


def _rgb(source: Path | io.BytesIO) -> Image.Image:
    """The decoded image. Raises DataError with the fault alone."""
    try:
        with Image.open(source) as image:
            return image.convert("RGB")
    except UnidentifiedImageError as error:
        raise DataError("not an image") from error
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and others
        raise DataError(reason(error)) from error


def decode(path: Path, size: int) -> NDArray[np.uint8]:
    """An image as RGB [size, size, 3]: the shorter side resized to `size` (bicubic), and the centre cut out.

    Raises DataError where the image has become unreadable since it was checked.
    """
    try:
        rgb = _rgb(path)
    except DataError as error:
        raise DataError(f"The image {path} cannot be decoded: {error}") from error
    width, height = rgb.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    # Up to rounding the same as resizing the whole and cutting then, which an image of 1 x 10,000 would blow up.
    square = rgb.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    return np.asarray(square)
