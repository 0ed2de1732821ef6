"""Characters of the fonts that matplotlib includes, drawn with seeded changes: images without a download. fontTools
reads the outlines as numbers, and they are filled here, with additions and multiplications only: the pixels do not
depend on the version of FreeType and are the same on every platform.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib.util
import io
import json
import logging
import string
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ablate.config.base import Names
from ablate.config.bounds import MOST_SEED
from ablate.config.errors import DataError, Problem
from ablate.config.lazy import torch
from ablate.data.base import Batch, BatchDataset, Corpus, DataConfig, data_kinds
from ablate.data.files import hold_lock, write_whole
from ablate.data.images.batches import LabelledImages
from ablate.data.images.sources import TASKS
from ablate.data.progress import show_progress
from ablate.data.splits import split

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
KINDS = ("paper", "digit", "capital letter", "small letter")
"""The classes of pixels in masks."""
SYMBOLS = ("cmex10.ttf", "cmmi10.ttf", "cmsy10.ttf")
"""Fonts that draw mathematical symbols, old-style figures or script instead of letters and digits."""
MOST_BYTES = 2**32  # of all images
_VERSION = 1  # of the drawing: raise it if the images change
_CURVE = 6  # straight edges that stand for a quadratic curve
_LINES = 3  # horizontal lines through each row of pixels, along which coverage is exact
_EM = 0.85  # of the height of an image: the size of the font
_BASELINE = 0.74  # of the height of an image, from the top

Floats = NDArray[np.float64]
DrawOutline = Callable[[Floats, int, int, np.random.PCG64], NDArray[np.uint8]]
"""Edges of an outline, number of draws, size of an image, random bits -> an image of each draw."""


@data_kinds.register
class Glyphs(DataConfig):
    """Digits and letters, 62 classes, in the fonts that matplotlib includes: grey images with seeded affine changes,
    contrast and noise.

    By default 17 fonts are used for training and the four fonts of the family STIX are held out with all their images:
    validation measures an unseen typeface. With `held_out: draws` single images are held out at random, and training
    has other images of the same outlines: an easier task with a lower loss. Some classes differ in size alone (o and O,
    s and S, v and V, w and W, x and X, z and Z) or hardly at all (0 and O, I and l), so that no model classifies all
    images correctly.
    """

    kind: Literal["glyphs"] = "glyphs"
    task: ClassVar[str] = "image_classification"
    # of the training images of the default settings, in [0, 1]
    MEAN: ClassVar[float] = 0.2025
    STD: ClassVar[float] = 0.2125

    targets: Literal["class", "mask"] = "class"
    """The targets of an image: its class; or a mask with the class of each pixel, 0 the paper, 1 the ink of a digit, 2
    of a capital letter, 3 of a small one."""
    image_size: int = Field(32, ge=8, le=256)
    """Side of the square images, in pixels."""
    draws: int = Field(32, ge=1, le=10_000)
    """Training images of each character in each font."""
    val_draws: int = Field(8, ge=1, le=10_000)
    """Validation images of each character in each held-out font."""
    draw_seed: int = Field(0, ge=0, le=MOST_SEED)
    """Seed of the drawn images. It is not the experiment's seed: all seeds use the same images."""
    held_out: Literal["fonts", "draws"] = "fonts"
    """fonts: the fonts `val_fonts`. draws: `val_fraction` of the images of all fonts, at random."""
    val_fonts: Names = ("STIX*",)
    """File names of the held-out fonts, or patterns of them: DejaVuSans*, DejaVuSerif*, STIX*, cm*."""

    @property
    def default_task(self) -> str:
        return TASKS[self.targets]

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (1, self.image_size, self.image_size)

    def validate(self, batch: int) -> list[Problem]:  # type: ignore[override]
        most = 21 * len(CHARACTERS) * max(self.draws, self.val_draws) * self.image_size**2
        if most > MOST_BYTES:
            text = f"with image_size={self.image_size} the images would take {most / 2**30:.0f} GiB; the limit is 4 GiB"
            return [Problem("draws", text, self.draws)]
        return []

    def load(self, cache: Path) -> Corpus:
        fonts = find_fonts()
        train_fonts, val_fonts = self._divide(fonts)
        images, labels, fingerprint = self._draw_or_read(train_fonts, self.draws, cache)
        rows = np.arange(len(labels))
        if val_fonts:
            val_images, val_labels, val_fingerprint = self._draw_or_read(val_fonts, self.val_draws, cache)
            train = self._build_dataset(images, labels, rows, train_fonts, self.draws, cache)
            val_rows = np.arange(len(val_labels))
            val = self._build_dataset(val_images, val_labels, val_rows, val_fonts, self.val_draws, cache)
            fingerprint = hashlib.sha256((fingerprint + val_fingerprint).encode()).hexdigest()
            held = f"{len(val_fonts)} fonts held out"
        else:
            train_rows, val_rows = split(len(labels), self.val_fraction, self.split_seed, "images")
            train = self._build_dataset(images, labels, train_rows, train_fonts, self.draws, cache)
            val = self._build_dataset(images, labels, val_rows, train_fonts, self.draws, cache)
            held = "of the same fonts"
        size, classes = self.image_size, len(KINDS) if self.targets == "mask" else len(CHARACTERS)
        return Corpus(
            train=train,
            val=val,
            fingerprint=fingerprint,
            classes=classes,
            shape=(1, size, size),
            bytes_per_token=None,
            description=f"glyphs: {len(train):,} training and {len(val):,} validation images of {size} x {size}, "
            f"{classes} classes{' in masks' if self.targets == 'mask' else ''}, {len(fonts)} fonts, {held}",
        )

    def _build_dataset(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        rows: NDArray[np.int64],
        fonts: Sequence[Path],
        draws: int,
        cache: Path,
    ) -> BatchDataset:
        plain = GreyImages(images, labels, rows, self.MEAN, self.STD)
        if self.targets == "class":
            return plain
        inked, _ = self._keep("Drawing masks", fonts, draws, "ink", draw_ink, cache)
        return MaskedGreyImages(plain, inked)

    def _divide(self, fonts: Sequence[Path]) -> tuple[list[Path], list[Path]]:
        """Return the fonts for (training, validation), none for validation if draws are held out. Raises DataError if a
        side has no fonts."""
        if self.held_out == "draws":
            return list(fonts), []
        names = ", ".join(font.name for font in fonts)
        for pattern in self.val_fonts:
            if not any(fnmatch.fnmatchcase(font.name, pattern) for font in fonts):
                raise DataError(f"data.val_fonts: no font is called {pattern}. Accepted: {names}.")
        held = [font for font in fonts if any(fnmatch.fnmatchcase(font.name, p) for p in self.val_fonts)]
        kept = [font for font in fonts if font not in held]
        if not held or not kept:
            side = "training" if held else "validation"
            raise DataError(f"data.val_fonts leaves no font for {side}. Accepted: {names}.")
        return kept, held

    def _draw_or_read(
        self, fonts: Sequence[Path], draws: int, cache: Path
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], str]:
        """Return the images of `fonts` [n, size, size], their classes and the SHA-256 of both, drawn where they are not
        in `cache`. Raises DataError."""
        labels = label_draws(fonts, draws)
        images, digest = self._keep("Drawing glyphs", fonts, draws, "", draw, cache)
        return images, labels, digest

    def _keep(
        self, title: str, fonts: Sequence[Path], draws: int, what: str, draw_outline: DrawOutline, cache: Path
    ) -> tuple[NDArray[np.uint8], str]:
        """Return the images that `draw_outline` draws of each outline of `fonts` [n, size, size], read from `cache` if
        they are there, and the SHA-256 of images and classes. `what` names them in the cache."""
        contents = [hashlib.sha256(font.read_bytes()).hexdigest() for font in fonts]
        key = json.dumps([_VERSION, contents, self.image_size, draws, self.draw_seed, *([what] if what else [])])
        file = cache / "glyphs" / f"{hashlib.sha256(key.encode()).hexdigest()}.npy"
        labels = label_draws(fonts, draws)
        note = file.with_suffix(".json")
        with hold_lock(file):
            if not note.exists():
                images = np.empty((len(labels), self.image_size, self.image_size), np.uint8)
                with show_progress(title, len(labels), "images") as advance:
                    outlines = ((font.name, *outline) for font in fonts for outline in read_outlines(font).items())
                    for i, (font, character, edges) in enumerate(outlines):  # the images of one depend on no other
                        seeds = np.random.SeedSequence([self.draw_seed, zlib.crc32(font.encode()), ord(character)])
                        drawn = draw_outline(edges, draws, self.image_size, np.random.PCG64(seeds))
                        images[i * draws : (i + 1) * draws] = drawn
                        advance((i + 1) * draws)
                content = io.BytesIO()
                np.save(content, images)
                write_whole(file, content.getvalue())
                digest = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
                write_whole(note, json.dumps(digest).encode())  # last: it marks the images as complete
        try:
            return np.load(file, mmap_mode="r"), str(json.loads(note.read_bytes()))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{file} cannot be read; remove it and {note.name}, and the images are drawn again."
            ) from error


class GreyImages(LabelledImages):
    """The `rows` of grey images, uint8 [n, size, size], scaled on access: float32 [batch, 1, size, size] and their
    classes, int64 [batch]."""

    def __init__(
        self, images: NDArray[np.uint8], labels: NDArray[np.int64], rows: NDArray[np.int64], mean: float, std: float
    ) -> None:
        self.images, self.rows, self.mean, self.std = images, rows, mean, std
        self.labels, self.class_names = torch.from_numpy(labels[rows]), tuple(CHARACTERS)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        chosen = np.asarray(indices, dtype=np.int64)
        pixels = torch.from_numpy(self.images[self.rows[chosen]].astype(np.float32))
        return pixels.div_(255).sub_(self.mean).div_(self.std)[:, None], self.labels[torch.from_numpy(chosen)]


class MaskedGreyImages(BatchDataset):
    """Grey images with the class of each pixel: float32 [batch, 1, size, size] and int64 [batch, size, size]."""

    def __init__(self, images: GreyImages, inked: NDArray[np.uint8]) -> None:
        self.images, self.inked = images, inked
        self.kinds = torch.tensor([find_kind(character) for character in CHARACTERS])

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        images, labels = self.images.__getitems__(indices)
        rows = self.images.rows[np.asarray(indices, dtype=np.int64)]
        return images, torch.from_numpy(self.inked[rows].astype(np.int64)) * self.kinds[labels][:, None, None]


def find_kind(character: str) -> int:
    """Return the class of the ink of a character, an index of `KINDS`."""
    return 1 if character.isdigit() else 2 if character.isupper() else 3


def label_draws(fonts: Sequence[Path], draws: int) -> NDArray[np.int64]:
    """Return the class of each image [n] of so many draws of each character in each font."""
    return np.tile(np.repeat(np.arange(len(CHARACTERS)), draws), len(fonts))


# ---------------------------------------------------------------------------------------------------- fonts


def find_fonts() -> list[Path]:
    """Return the fonts of matplotlib that have a distinct glyph for each character, by name. Raises DataError if there
    are none."""
    spec = importlib.util.find_spec("matplotlib")  # which is not imported for it
    if spec is None or not spec.submodule_search_locations:
        raise DataError("Data kind glyphs needs the library matplotlib: pip install matplotlib")
    folder = Path(next(iter(spec.submodule_search_locations)), "mpl-data", "fonts", "ttf")
    fonts = [font for font in sorted(folder.glob("*.ttf")) if font.name not in SYMBOLS and _has_characters(font)]
    if not fonts:
        raise DataError(
            f"Data kind glyphs found no font with letters and digits in {folder}: install matplotlib again."
        )
    return fonts


def _has_characters(file: Path) -> bool:
    names = _open_font(file).getBestCmap() or {}
    return len({names[ord(c)] for c in CHARACTERS if ord(c) in names}) == len(CHARACTERS)


def _open_font(file: Path):  # type: ignore[no-untyped-def]
    from fontTools.ttLib import TTFont, TTLibError

    logging.getLogger("fontTools").setLevel(logging.ERROR)  # it tells of dates of fonts before 1970
    try:
        return TTFont(file, lazy=True)
    except (TTLibError, OSError) as error:
        raise DataError(f"The font {file} cannot be read: {error}. Install matplotlib again.") from error


@lru_cache(maxsize=64)
def read_outlines(file: Path) -> dict[str, Floats]:
    """Return character -> the straight edges of its outline [n, 4]: from x, y to x, y in ems, y upwards, with the
    baseline at 0 and the middle of the width at 0."""
    from fontTools.pens.basePen import decomposeQuadraticSegment
    from fontTools.pens.recordingPen import DecomposingRecordingPen

    font = _open_font(file)
    glyphs, names, em = font.getGlyphSet(), font.getBestCmap(), font["head"].unitsPerEm
    outlines = {}
    for character in CHARACTERS:
        pen = DecomposingRecordingPen(glyphs)
        glyphs[names[ord(character)]].draw(pen)
        edges: list[tuple[float, float, float, float]] = []
        start = here = (0.0, 0.0)
        for operation, points in pen.value:
            if operation == "moveTo":
                start = here = points[0]
            elif operation == "lineTo":
                edges.append((*here, *points[0]))
                here = points[0]
            elif operation == "qCurveTo":
                if points[-1] is None:  # a closed curve without a point on it: it begins midway between two controls
                    first, last = points[0], points[-2]
                    start = here = ((first[0] + last[0]) / 2, (first[1] + last[1]) / 2)
                    points = (*points[:-1], start)
                for control, end in decomposeQuadraticSegment(points):
                    edges += _flatten(here, control, end)
                    here = end
            elif here != start:  # closePath
                edges.append((*here, *start))
                here = start
        outline = np.array(edges, np.float64) / em
        outline[:, [0, 2]] -= (outline[:, [0, 2]].min() + outline[:, [0, 2]].max()) / 2
        outlines[character] = outline
    return outlines


def _flatten(
    start: tuple[float, float], control: tuple[float, float], end: tuple[float, float]
) -> list[tuple[float, float, float, float]]:
    """Return edges that approximate a quadratic curve."""
    points = []
    for i in range(_CURVE + 1):
        t = i / _CURVE
        a, b, c = (1 - t) * (1 - t), 2 * t * (1 - t), t * t
        points.append((a * start[0] + b * control[0] + c * end[0], a * start[1] + b * control[1] + c * end[1]))
    return [(*points[i], *points[i + 1]) for i in range(_CURVE)]


# ---------------------------------------------------------------------------------------------------- drawing


def draw(edges: Floats, draws: int, size: int, bits: np.random.PCG64) -> NDArray[np.uint8]:
    """Return `draws` images of an outline [draws, size, size]: turned by up to 15 degrees, slanted, stretched and moved
    a little, with a contrast and a noise of its own. `bits` gives random bits, whose order numpy promises to keep."""
    u, coverage = _cover(edges, draws, size, bits)
    paper, ink = 0.25 * u[6], 0.55 + 0.45 * u[7]
    raw = bits.random_raw(draws * size * size // 2 + 1).astype("<u8").view(np.uint8)[: 4 * draws * size * size]
    noise = raw.reshape(draws, size, size, 4).astype(np.float64)
    noise = (noise[..., 0] + noise[..., 1] + noise[..., 2] + noise[..., 3] - 510) / 147.8  # of standard deviation 1
    grey = paper[:, None, None] + (ink - paper)[:, None, None] * coverage + (0.15 * u[8])[:, None, None] * noise
    drawn: NDArray[np.uint8] = np.rint(255 * np.clip(grey, 0, 1)).astype(np.uint8)
    return drawn


def draw_ink(edges: Floats, draws: int, size: int, bits: np.random.PCG64) -> NDArray[np.uint8]:
    """Return the ink of the images that `draw` makes of the same `bits` [draws, size, size]: 1 where the outline covers
    at least half of a pixel, otherwise 0."""
    return (_cover(edges, draws, size, bits)[1] >= 0.5).astype(np.uint8)


def _cover(edges: Floats, draws: int, size: int, bits: np.random.PCG64) -> tuple[Floats, Floats]:
    """Return the random numbers of each draw [9, draws], uniform in [0, 1), and the share of each pixel that its
    outline covers [draws, size, size]."""
    u = np.asarray((bits.random_raw(draws * 9) >> 11).reshape(9, draws) * 2.0**-53, np.float64)
    half = (2 * u[0] - 1) * 0.1305  # the tangent of half the angle: no sine, whose last digit depends on the platform
    cosine, sine = (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)
    slant, wide, high = (2 * u[1] - 1) * 0.2, 0.8 + 0.35 * u[2], 0.8 + 0.35 * u[3]
    left, down = (2 * u[4] - 1) * 0.08, (2 * u[5] - 1) * 0.08
    middle = 0.33  # ems above the baseline, about which it is turned
    x, y = edges[None, :, [0, 2]], edges[None, :, [1, 3]] - middle
    x = (x + slant[:, None, None] * y) * wide[:, None, None]
    y = y * high[:, None, None]
    turned_x = cosine[:, None, None] * x - sine[:, None, None] * y
    turned_y = sine[:, None, None] * x + cosine[:, None, None] * y
    across = size * (0.5 + left[:, None, None] + _EM * turned_x)
    along = size * (_BASELINE - _EM * middle + down[:, None, None] - _EM * turned_y)
    return u, fill(across, along, size)


def fill(x: Floats, y: Floats, size: int) -> Floats:
    """Return the covered share of each pixel of outlines [draws, size, size], whose edges go from (x[..., 0],
    y[..., 0]) to (x[..., 1], y[..., 1]), each [draws, n, 2], y downwards."""
    draws, lines = len(x), size * _LINES
    at = (np.arange(lines) + 0.5) / _LINES
    above = y[:, :, :, None] <= at  # [draws, n, 2, lines]
    which, edge, line = np.nonzero(above[:, :, 0] != above[:, :, 1])
    x0, x1, y0, y1 = x[which, edge, 0], x[which, edge, 1], y[which, edge, 0], y[which, edge, 1]
    crossing = np.clip(x0 + (at[line] - y0) * ((x1 - x0) / (y1 - y0)), 0, size)
    direction = np.where(y1 > y0, 1.0, -1.0)
    pixel = np.minimum(np.floor(crossing), size - 1)
    inside = 1 - (crossing - pixel)  # of this pixel; all of those to its right
    cell = ((which * lines + line) * (size + 1) + pixel).astype(np.int64)
    count = draws * lines * (size + 1)
    steps = np.bincount(cell, direction * inside, count) + np.bincount(cell + 1, direction * (1 - inside), count)
    winding = np.cumsum(steps.reshape(draws, lines, size + 1), axis=2)[:, :, :size]
    covered = np.minimum(np.abs(winding), 1).reshape(draws, size, _LINES, size)
    share: Floats = (covered[:, :, 0] + covered[:, :, 1] + covered[:, :, 2]) / _LINES
    return share
