"""Drawn characters: what is filled, that it is the same everywhere, what is held out, and errors."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from ablate.config.errors import ConfigError, DataError
from ablate.data.images.glyphs import CHARACTERS, Glyphs, draw, fill, find_fonts, read_outlines
from ablate.estimate.inputs import build_blank
from ablate.experiment.tree import Experiment

SMALL = {"draws": 2, "val_draws": 1, "image_size": 16}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return Glyphs(**SMALL).load(tmp_path_factory.mktemp("cache"))


def polygon(*points):
    """The edges of a polygon as `fill` takes them."""
    x, y = np.array([points, [*points[1:], points[0]]], float).transpose(2, 1, 0)
    return x[None], y[None]


def test_fill_gives_the_share_of_each_pixel_that_is_inside():
    x, y = polygon((1.25, 1), (3.5, 1), (3.5, 3), (1.25, 3))
    assert fill(x, y, 4)[0] == pytest.approx(np.array([[0] * 4, [0, 0.75, 1, 0.5], [0, 0.75, 1, 0.5], [0] * 4]))
    hole = polygon((0, 0), (4, 0), (4, 4), (0, 4)), polygon((1, 1), (1, 3), (3, 3), (3, 1))  # the other way round
    frame = fill(*(np.concatenate(both, axis=1) for both in zip(*hole, strict=True)), 4)[0]
    assert frame.sum() == 12
    assert frame[1:3, 1:3].sum() == 0
    cut = fill(*polygon((-5, -5), (9, -5), (9, 9), (-5, 9)), 4)
    assert (cut == 1).all()


def trim(image):
    """What is inked of an image, in 100 x 100 pixels."""
    rows, columns = np.nonzero(image > 0.5)
    inked = image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    return np.asarray(Image.fromarray((255 * inked).astype(np.uint8)).resize((100, 100))).ravel()


def test_outlines_look_as_freetype_draws_them():
    font = next(file for file in find_fonts() if file.name == "DejaVuSerif.ttf")
    size = 160
    truetype = ImageFont.truetype(str(font), size)
    for character, edges in read_outlines(font).items():
        x, y = edges[None, :, [0, 2]] * size + size, size - edges[None, :, [1, 3]] * size
        image = Image.new("L", (2 * size, 2 * size))
        ImageDraw.Draw(image).text((size / 2, size), character, fill=255, font=truetype, anchor="ls")
        likeness = np.corrcoef(trim(fill(x, y, 2 * size)[0]), trim(np.asarray(image) / 255))[0, 1]
        assert likeness > 0.95, character  # which is hinted to the grid


EXPECTED = [
    [3, 10, 15, 23, 10, 10, 6, 19], [17, 14, 20, 34, 15, 12, 12, 11], [18, 17, 63, 145, 35, 10, 19, 19],
    [17, 9, 87, 162, 155, 36, 12, 12], [8, 16, 130, 162, 156, 149, 26, 13], [12, 15, 97, 54, 39, 7, 23, 12],
    [14, 16, 6, 14, 16, 15, 18, 12], [8, 17, 16, 19, 5, 16, 9, 12],
]  # fmt: skip


def test_what_is_drawn_is_the_same_on_every_platform():
    edges = np.array([[-0.3, 0, 0.3, 0], [0.3, 0, 0, 0.7], [0, 0.7, -0.3, 0]])
    image = draw(edges, 1, 8, np.random.PCG64(np.random.SeedSequence([0, 1, 2])))[0]
    assert image.tolist() == EXPECTED


def test_fonts_with_symbols_in_the_place_of_letters_are_left_out():
    names = [font.name for font in find_fonts()]
    assert {"DejaVuSans.ttf", "STIXGeneral.ttf", "cmr10.ttf"} <= set(names)
    assert not {"LastResortHE-Regular.ttf", "STIXNonUni.ttf", "cmex10.ttf", "cmmi10.ttf", "cmsy10.ttf"} & set(names)


def test_whole_fonts_are_held_out(small, tmp_path):
    fonts = find_fonts()
    assert (len(small.train), len(small.val)) == (62 * 2 * (len(fonts) - 4), 62 * 4)
    assert small.classes == 62
    assert torch.bincount(small.train.labels).tolist() == [2 * (len(fonts) - 4)] * 62
    alone = Glyphs(**{**SMALL, "val_draws": 2}, val_fonts=("DejaVu*", "cm*")).load(tmp_path)  # STIX is trained on
    assert {row.tobytes() for row in alone.train.images}.isdisjoint({row.tobytes() for row in small.train.images})
    inputs, labels = small.val.__getitems__([3, 100])
    assert inputs.shape == (2, 1, 16, 16)
    assert inputs.dtype == torch.float32
    assert labels.tolist() == [3, 100 - 62]
    assert small.val.class_names[3] == "3"


def test_draws_of_the_same_fonts_can_be_held_out_instead(tmp_path):
    corpus = Glyphs(**SMALL, held_out="draws", val_fraction=0.25).load(tmp_path)
    total = 62 * 2 * len(find_fonts())
    assert len(corpus.val) == round(0.25 * total)
    assert len(corpus.train) == total - len(corpus.val)
    assert {*corpus.train.rows.tolist()}.isdisjoint(corpus.val.rows.tolist())


def test_the_same_settings_give_the_same_images_and_are_drawn_once(small, tmp_path, monkeypatch):
    first = Glyphs(**SMALL).load(tmp_path)
    assert first.fingerprint == small.fingerprint
    monkeypatch.setattr("ablate.data.images.glyphs.draw", None)
    again = Glyphs(**SMALL).load(tmp_path)
    assert (again.train.images == small.train.images).all()
    for file in tmp_path.glob("glyphs/*.npy"):
        file.write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"remove it and .*json, and the images are drawn again"):
        Glyphs(**SMALL).load(tmp_path)


def test_another_seed_draws_others(small, tmp_path):
    other = Glyphs(**SMALL, draw_seed=1).load(tmp_path)
    assert other.fingerprint != small.fingerprint
    assert (other.train.images != small.train.images).any(axis=(1, 2)).all()


def test_a_font_that_there_is_not_and_settings_that_are_too_large_are_told(tmp_path):
    with pytest.raises(DataError, match=r"no font is called Arial\*. Accepted: DejaVuSans-Bold.ttf"):
        Glyphs(val_fonts=("Arial*",)).load(tmp_path)
    with pytest.raises(DataError, match="leaves no font for training"):
        Glyphs(val_fonts=("*",)).load(tmp_path)
    with pytest.raises(ConfigError, match="the images would take"):
        Experiment.from_mapping({"model": "vit-glyphs", "data": {"kind": "glyphs", "draws": 5000, "image_size": 64}})


def test_the_preset_is_a_model_for_these_images(small):
    experiment = Experiment.from_mapping({"model": "vit-glyphs", "data": "glyphs"})
    assert experiment.data.input_shape == (1, 32, 32)
    assert len(CHARACTERS) == 62
    assert 100_000 < build_blank(experiment, 62, (1, 32, 32)).parameter_count() < 300_000
