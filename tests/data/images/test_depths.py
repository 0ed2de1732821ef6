"""Images of more than 8 bits a pixel: every grey keeps its place in the range."""

import io

import numpy as np
import pytest
from PIL import Image

from ablate.config.errors import DataError
from ablate.data.images.pixels import decode

RAMP = np.arange(65536, dtype=np.uint16).reshape(256, 256)


def encode(image, kind):
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def read(encoded):
    """The one grey of each pixel of the decoded image."""
    image = np.asarray(decode(encoded))
    assert (image == image[..., :1]).all()
    return image[..., 0]


def refuse(encoded):
    with pytest.raises(DataError) as caught:
        decode(encoded)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_a_ramp_of_16_bits_keeps_256_greys(kind):
    assert np.array_equal(read(encode(Image.fromarray(RAMP), kind)), RAMP >> 8)


def test_16_bits_in_the_mode_of_older_pillow(monkeypatch):
    """Pillow 10 opens 16-bit PNG in mode I."""
    opened = Image.fromarray(RAMP.astype(np.int32))
    opened.format = "PNG"
    monkeypatch.setattr(Image, "open", lambda file: opened)
    assert np.array_equal(read(b"any"), RAMP >> 8)


def as_unsigned(tiff, before, after):
    """A TIFF with one short entry of its directory changed, (tag, value) -> value."""
    tag, value = before
    entry = np.array([tag, 3, 1, 0, value, 0], "<u2").tobytes()
    assert tiff.count(entry) == 1
    return tiff.replace(entry, np.array([tag, 3, 1, 0, after, 0], "<u2").tobytes())


def test_a_ramp_of_32_bits():
    values = (RAMP.astype(np.uint32) << 16) + 77
    signed = encode(Image.fromarray(values.view(np.int32)), "TIFF")
    assert refuse(signed) == (
        "its values are signed whole numbers, whose range is unknown. Convert it to 8 or 16 bits per pixel."
    )
    assert np.array_equal(read(as_unsigned(signed, (339, 2), 1)), RAMP >> 8)


def test_32_bits_that_would_be_one_grey_are_refused():
    signed = encode(Image.fromarray(RAMP.astype(np.int32)), "TIFF")
    message = refuse(as_unsigned(signed, (339, 2), 1))
    assert message.startswith("its values from 0 to 65,535 are a single grey level in the range of 32 bits. Convert")


def test_floats_from_0_to_1():
    ramp = np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)
    assert read(encode(Image.fromarray(ramp), "TIFF")).ravel().tolist() == list(range(256))


@pytest.mark.parametrize(("value", "shown"), [(255.0, "0 to 255"), (-1.0, "-1 to 0"), (np.nan, "nan to nan")])
def test_floats_of_an_unknown_range_are_refused(value, shown):
    image = np.zeros((2, 2), np.float32)
    image[0, 0] = value
    message = refuse(encode(Image.fromarray(image), "TIFF"))
    assert message == f"its values are floats from {shown}; expected 0 to 1. Convert it to 8 or 16 bits per pixel."


def test_whole_numbers_of_an_unknown_format_are_refused(monkeypatch):
    monkeypatch.setattr(Image, "open", lambda file: Image.fromarray(RAMP.astype(np.int32)))
    assert "whole numbers of mode I, whose range is unknown" in refuse(b"any")


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_inks_become_light(kind):
    image = Image.new("CMYK", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 0, 255))
    assert np.abs(read(encode(image, kind)).astype(int) - [[255, 0]]).max() <= 4  # JPEG is not exact
