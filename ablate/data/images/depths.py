"""Images of more than 8 bits per pixel as RGB: scaled by the range of their values, whereas Pillow clips them at
255."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ablate.config.errors import DataError

_BITS_PER_SAMPLE, _SAMPLE_FORMAT = 258, 339  # tags of TIFF
_UNSIGNED = 1  # the sample format that TIFF assumes where a file names none
_REMEDY = "Convert it to 8 or 16 bits per pixel."


def convert_to_rgb(image: Image.Image) -> Image.Image:
    """Return the image in RGB; grey values of 12, 16 and 32 bits by their highest 8 bits, floats from 0 to 1 as 0 to
    255. Raises DataError if the range of the values is unknown."""
    if image.mode.startswith("I"):
        grey = _reduce_integers(image)
    elif image.mode == "F":
        values = np.asarray(image)
        low, high = float(values.min()), float(values.max())
        if not (low >= 0 and high <= 1):  # so that NaN is refused too
            raise DataError(f"its values are floats from {low:g} to {high:g}; expected 0 to 1. {_REMEDY}")
        grey = np.rint(values * 255).astype(np.uint8)
    else:
        return image.convert("RGB")
    return Image.fromarray(grey).convert("RGB")


def _reduce_integers(image: Image.Image) -> NDArray[np.uint8]:
    bits = _find_bits(image)
    values = np.asarray(image)
    if bits == 32:
        values = values.view(np.uint32)  # Pillow has no mode for these, and gives the same bits as signed
    grey = (values >> (bits - 8)).astype(np.uint8)
    if bits == 32 and grey.min() == grey.max() and values.min() != values.max():
        text = f"from {values.min():,} to {values.max():,} are a single grey level in the range of 32 bits"
        raise DataError(f"its values {text}. {_REMEDY}")
    return grey


def _find_bits(image: Image.Image) -> int:
    """Return how many bits the values of an image of mode I or I;16 have. Raises DataError if that is unknown."""
    tags: Any = getattr(image, "tag_v2", None)
    if tags is not None:
        if tags.get(_SAMPLE_FORMAT, (_UNSIGNED,))[0] != _UNSIGNED:
            raise DataError(f"its values are signed whole numbers, whose range is unknown. {_REMEDY}")
        return int(tags[_BITS_PER_SAMPLE][0])
    if image.mode != "I" or image.format in ("PNG", "PPM"):  # PNG is of mode I in Pillow 10, PPM is scaled to 16 bits
        return 16
    raise DataError(f"its values are whole numbers of mode {image.mode}, whose range is unknown. {_REMEDY}")
