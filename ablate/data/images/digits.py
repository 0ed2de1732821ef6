"""scikit-learn's digits, which need no download."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from ablate.config.errors import DataError
from ablate.config.lazy import torch
from ablate.data.base import Corpus, DataConfig, data_kinds
from ablate.data.images.batches import MemoryImages
from ablate.data.splits import split


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
    """The share of the images that is held out for validation."""

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
