"""The base of all sources of images: encoded images with labels by row, checked and hashed once."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ablate.config.errors import DataError, did_you_mean
from ablate.config.formatting import join_first
from ablate.data.files import remember
from ablate.data.images.pixels import decode
from ablate.data.progress import show_progress

Targets = Literal["class", "labels", "mask"]

TASKS = {"class": "image_classification", "labels": "multilabel_classification", "mask": "image_segmentation"}
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
