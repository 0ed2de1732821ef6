"""Folders of images: one folder for each class."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ablate.config.errors import DataError
from ablate.data.files import explain
from ablate.data.images.sources import ImageSource

logger = logging.getLogger(__name__)

SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".bmp", ".dib", ".gif", ".tif", ".tiff"),
    *(".jp2", ".j2k", ".jpx", ".avif", ".ppm", ".pgm", ".pbm", ".pnm", ".tga"),
)
"""The image formats that Pillow reads without plugins. A fixed list, so that the files of a corpus do not depend on the
installed Pillow."""
VALIDATION_FOLDERS = ("val", "validation")
TEST_FOLDER = "test"


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


def find_layout(root: Path) -> tuple[Path, Path | None]:
    """Return (training folder, validation folder or None) of `root`, each with one folder for each class.

    Raises DataError for a missing root.
    """
    if not os.path.isdir(root):
        raise DataError(f"There is no folder {root}" + (", only a file" if os.path.exists(root) else ""))
    train = root / "train"
    # A class may be called "train" too, and then has images rather than folders.
    if train.is_dir() and _list_folders(train):
        return train, next((root / name for name in VALIDATION_FOLDERS if (root / name).is_dir()), None)
    return root, None


def find_images(folder: Path, root: Path) -> FolderImages:
    """Return the images folder/CLASS/**, with the classes sorted by name; hidden files and folders are left out. Their
    identities are the paths below `root`.

    Raises DataError for fewer than two classes and for a class without images.
    """
    names = _list_folders(folder)
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
    for label, name in enumerate(names):
        visible = sorted(_walk_files(folder / name))
        files = [file for file in visible if _is_image(file)]
        skipped += [file.relative_to(folder) for file in visible if not _is_image(file)]
        empty += [] if files else [name]
        paths += map(str, files)
        labels += [label] * len(files)
    if empty:
        raise DataError(f"No images in {folder} for: {', '.join(empty)}. Accepted: {', '.join(SUFFIXES)}.")
    if skipped:
        logger.warning(f"{folder}: {_describe_skipped(skipped)}")
    return FolderImages(root, paths, np.array(labels, np.int64), tuple(names))


def list_images(folder: Path) -> list[Path]:
    """Return the images below a folder, sorted by name; hidden files are left out. Raises DataError where there are
    none."""
    if not os.path.isdir(folder):
        raise DataError(f"There is no folder {folder}")
    files = sorted(file for file in _walk_files(folder) if _is_image(file))
    if not files:
        raise DataError(f"No images in {folder}. Accepted: {', '.join(SUFFIXES)}.")
    return files


def _list_folders(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {explain(error)}") from error


def _walk_files(folder: Path) -> Iterator[Path]:
    """Yield the files below `folder` that are not hidden."""

    def complain(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be read: {explain(error)}") from error

    for parent, folders, files in os.walk(folder, onerror=complain):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in files if not name.startswith("."))


def _is_image(file: Path) -> bool:
    return file.name.lower().endswith(SUFFIXES)


def _describe_skipped(files: Sequence[Path]) -> str:
    """Return the number of files that are left out, their suffixes, and the first names."""
    counts = Counter(file.suffix.lower() or "no suffix" for file in files)
    kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in counts.most_common(5))
    number = "1 file is" if len(files) == 1 else f"{len(files):,} files are"
    names = ", ".join(map(str, files[:5])) + (", ..." if len(files) > 5 else "")
    return f"{number} left out, since their formats are not read ({kinds}): {names}. Accepted: {', '.join(SUFFIXES)}."
