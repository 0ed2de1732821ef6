"""From the bytes of an image to the model's input, without randomness: decoding, resizing, cropping, scaling."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, TypeAlias

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from pydantic import Field, PositiveFloat

from ablate.config.base import Config
from ablate.config.bounds import MOST_PIXELS
from ablate.config.errors import DataError
from ablate.config.lazy import torch
from ablate.data.files import explain

if TYPE_CHECKING:
    from torch import Tensor


def convert_to_rgb(image: Image.Image) -> Image.Image:
    """Return the image in RGB; grey values of 16 bits by their highest 8, whereas Pillow clips them at 255. Raises
    DataError for other values of more than 8 bits, whose range no reader knows for certain."""
    if not image.mode.startswith(("I", "F")):
        return image.convert("RGB")
    if image.format not in ("PNG", "PPM"):  # PNG is of mode I in Pillow 10, PPM is scaled to 16 bits
        text = f"its values are of mode {image.mode}, whose range is unknown. Convert it to 8 bits per pixel"
        raise DataError(f"{text}, or to a PNG of 16.")
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")


Transform: TypeAlias = "Callable[[Image.Image], Tensor]"
"""From a decoded RGB image to float32 [3, size, size]."""

TURNS: Mapping[int | None, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> what turns an image upright."""


class Pixels(Config):
    """The size and the scale of the model's input."""

    image_size: int = Field(224, ge=1, le=MOST_PIXELS)
    """Side of the square images, in pixels. Without augmentation, and always in validation, the shorter side is resized
    to it, then the centre is cropped."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Mean that is subtracted from red, green and blue in [0, 1]; the default is ImageNet's."""
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.229, 0.224, 0.225)
    """Standard deviation by which red, green and blue are then divided; the default is ImageNet's."""
    crop_pct: Annotated[float, Field(gt=0, le=1)] | None = None
    """timm's evaluation: the shorter side is resized to image_size / crop_pct before the centre is cropped; 0.875 is
    common on ImageNet. None: the whole centre square is resized at once."""

    def build_transform(self) -> Transform:
        """Return the transform of decoded images without augmentation."""
        if self.crop_pct is None:
            return CentreSquare(self)
        from timm.data import create_transform

        transform: Transform = create_transform(
            self.image_size,
            interpolation="bicubic",
            mean=self.mean,
            std=self.std,
            crop_pct=self.crop_pct,
        )
        return transform


class CentreSquare:
    """Resizes the centre square to the wanted size and scales it."""

    def __init__(self, pixels: Pixels) -> None:
        self.size = pixels.image_size
        self.mean = torch.tensor(pixels.mean)[:, None, None]
        self.std = torch.tensor(pixels.std)[:, None, None]

    def __call__(self, image: Image.Image) -> Tensor:
        square = torch.from_numpy(np.array(crop_centre(image, self.size, Image.Resampling.BICUBIC)))
        return square.permute(2, 0, 1).float().div_(255).sub_(self.mean).div_(self.std)


def crop_centre(image: Image.Image, size: int, resampling: Image.Resampling) -> Image.Image:
    """Return the image with its shorter side resized to `size`, and the centre cropped."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    # Up to rounding the same as resizing the whole and cutting then, which an image of 1 x 10,000 would blow up.
    return image.resize((size, size), resampling, box=(left, top, left + side, top + side))


def decode(encoded: bytes, convert: Callable[[Image.Image], Image.Image] = convert_to_rgb) -> Image.Image:
    """Return the image in RGB, or what `convert` makes of it, turned as its EXIF orientation says; for an animation the
    first frame. `info["orientation"]` is that orientation, None where there is none. Raises DataError with the cause,
    without the image's name."""
    if not encoded:
        raise DataError("empty")
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            orientation = _read_orientation(image)
            converted = convert(image)
            if (left := _read_orientation(image)) in TURNS:  # none is left of a TIFF, which Pillow turns
                converted = converted.transpose(TURNS[left])
            converted.info["orientation"] = orientation
            return converted
    except DataError:
        raise
    except UnidentifiedImageError as error:
        raise DataError("not an image") from error
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and others
        raise DataError(explain(error)) from error


def _read_orientation(image: Image.Image) -> int | None:
    """Return the orientation of an image's EXIF, or of its XMP; None without one, or where they are damaged."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # of a damaged one SyntaxError, struct.error, ValueError and others
        return None
