"""The part of a validation set that is also training data, by content: text by stretches and lines, other data by
item."""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Hashable, Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

from ablate.config.errors import DataError

logger = logging.getLogger(__name__)

RECIPE = 2
"""Incremented whenever the same texts would give another overlap."""
STRETCH = 256
"""Bytes, about 60 tokens, of a stretch of text that two texts do not share by chance."""
_MOST_LINES = 1 << 20
"""Different lines of the training text that are counted, to learn how often it repeats itself."""
_SENTENCES = (". ", "! ", "? ", "。")
"""Ends of sentences, at which lines are cut."""
_LONG, _WORDS = 400, "e "
"""Characters of a line that is cut although it has no sentences, and the ends of words behind which it is cut."""
_BLOCK, _FILTER = 1 << 20, 22
"""Bytes that are hashed at a time, and the bits of a hash that rule out most stretches which are not wanted."""


class Overlap(NamedTuple):
    """The part that training and validation share."""

    share: float
    """The part of the validation set that is training data, from 0 to 1."""
    example: str
    """The beginning of shared text or the name of a shared item; "" for none."""


def measure_texts(train: Iterable[str], val: Iterable[str]) -> Overlap:
    """Return the share of the validation text that is also training text, by whichever of two measures finds more;
    case, blanks and line ends are ignored.

    The first is the share of its stretches of `STRETCH` bytes that the training text has at any place. The second, for
    text in another order, is the share of its lines, or sentences, that the training text has, less the share of the
    training text's own lines that it has twice: records of one form, headings and licences repeat without being copies.
    """
    stretches, lines = _Stretches(), _Lines()
    for text in val:
        stretches.want(text)
        lines.want(text)
    stretches.close()
    for text in train:
        stretches.look_for(text)
        lines.look_for(text)
    return max(stretches.measure(), lines.measure())


class _Stretches:
    """Stretches of the validation text that are looked for at every place of the training text, by hash."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self._found = np.zeros(0, np.uint64)

    def want(self, text: str) -> None:
        normal = _normalise(text)
        if len(normal) >= STRETCH:
            self._texts.append(normal)

    def close(self) -> None:
        """Hash the stretches that are wanted; none can be added afterwards."""
        firsts = [text[cut : cut + STRETCH] for text in self._texts for cut in _find_cuts(text)]
        self._wanted = np.array([int(hash_stretches(first)[0]) for first in firsts], np.uint64)
        self._filter = np.zeros(1 << _FILTER, bool)
        self._filter[self._wanted >> np.uint64(64 - _FILTER)] = True

    def look_for(self, text: str) -> None:
        """Note which stretches a text of the training data has."""
        normal = _normalise(text) if len(self._wanted) else b""
        for start in range(0, len(normal) - STRETCH + 1, _BLOCK):
            hashes = hash_stretches(normal[start : start + _BLOCK + STRETCH - 1])
            likely = hashes[self._filter[hashes >> np.uint64(64 - _FILTER)]]
            self._found = np.union1d(self._found, np.intersect1d(likely, self._wanted))

    def measure(self) -> Overlap:
        known = iter(np.isin(self._wanted, self._found).tolist())
        total, copied, example = 0, 0.0, ""
        for text in self._texts:
            cuts = _find_cuts(text)
            hits = [cut for cut in cuts if next(known)]
            total += len(text)
            copied += len(text) * len(hits) / len(cuts)
            if hits and not example:
                example = text[hits[0] : hits[0] + 60].decode(errors="replace")
        return Overlap(copied / total if total else 0.0, example)


class _Lines:
    """Lines of the validation text that are looked for among those of the training text, in whatever order."""

    def __init__(self) -> None:
        self._wanted: dict[str, int] = {}  # -> how often
        self._found: set[str] = set()
        self._counts: dict[str, int] = {}  # of a share of 1 / `_thinned` of the training lines, chosen by their content
        self._thinned = 1

    def want(self, text: str) -> None:
        for line in _cut_text(text):
            self._wanted[line] = self._wanted.get(line, 0) + 1

    def look_for(self, text: str) -> None:
        """Note which lines a text of the training data has."""
        lines = _cut_text(text)
        self._found.update(self._wanted.keys() & set(lines))
        for line in lines:
            if self._thinned == 1 or zlib.crc32(line.encode()) % self._thinned == 0:
                self._counts[line] = self._counts.get(line, 0) + 1
        while len(self._counts) > _MOST_LINES:
            self._thinned *= 2
            kept = {line: n for line, n in self._counts.items() if zlib.crc32(line.encode()) % self._thinned == 0}
            self._counts = kept

    def measure(self) -> Overlap:
        known = {line: n for line, n in self._wanted.items() if line in self._found}
        repeated = {line: n for line, n in self._counts.items() if n > 1}
        share = _weigh(known, self._wanted) - _weigh(repeated, self._counts)
        return Overlap(share, max(known, key=len)[:60]) if share > 0 else Overlap(0.0, "")


def hash_stretches(text: bytes) -> np.ndarray:
    """Return a hash of the `STRETCH` bytes from each place of `text` on, of shape (len(text) - STRETCH + 1,): the value
    of a polynomial modulo 2^64, computed for all places at once."""
    powers, inverses = _list_powers()
    sums = np.zeros(len(text) + 1, np.uint64)
    np.cumsum(np.frombuffer(text, np.uint8).astype(np.uint64) * powers[: len(text)], out=sums[1:])
    return (sums[STRETCH:] - sums[:-STRETCH]) * inverses[: len(text) - STRETCH + 1]


@cache
def _list_powers() -> tuple[np.ndarray, np.ndarray]:
    """Return the powers of an odd number, and of its inverse, modulo 2^64."""
    base = 0x9E3779B97F4A7C15
    bases = (base, pow(base, -1, 1 << 64))
    ones = (np.full(_BLOCK + STRETCH, number, np.uint64) for number in bases)
    one, other = (np.concatenate([np.ones(1, np.uint64), np.cumprod(numbers)]) for numbers in ones)
    return one, other


def _find_cuts(text: bytes) -> range:
    return range(0, len(text) - STRETCH + 1, STRETCH)


def _weigh(some: dict[str, int], among: dict[str, int]) -> float:
    """Return the share of the characters of lines, each as often as it occurs."""
    total = sum(len(line) * count for line, count in among.items())
    return sum(len(line) * count for line, count in some.items()) / total if total else 0.0


def _normalise(text: str) -> bytes:
    return " ".join(text.lower().split()).encode()


def measure_items(
    train: Iterable[Hashable], val: Iterable[Hashable], name: Callable[[int], str] = "item {}".format
) -> Overlap:
    """Return the share of the validation items that are equal to a training item, and the `name` of the first one, by
    its number."""
    known = set(train)
    copies = [item in known for item in val]
    share = sum(copies) / len(copies) if copies else 0.0
    return Overlap(share, name(copies.index(True)) if share else "")


def check_overlap(overlap: Overlap, most: float, what: str, held_out: bool = False) -> str:
    """Return the share as a part of a description of the data; "" without any. Raises DataError for more than `most`;
    where the validation set is held out of data with copies, a warning says so. `what` is its name."""
    share = f"{100 * overlap.share:.3g} %"
    if overlap.share > most and held_out:
        logger.warning(f"{share} of {what} is also training data, since the data has copies ({overlap.example!r})")
        return ""
    if overlap.share > most:
        raise DataError(
            f"{share} of {what} is also training data ({overlap.example!r}), which a model can learn by heart; at most "
            f"{100 * most:.3g} % is accepted. Remove it from one of the two, or accept it with "
            f"data.max_overlap={math.ceil(100 * overlap.share) / 100:g}."
        )
    return f", {share} of {what} also training data" if overlap.share else ""


def _cut_text(text: str) -> list[str]:
    """Return the lines of a text, cut into sentences, in lower case, each blank as one space."""
    text = text.lower()
    for end in _SENTENCES:
        text = text.replace(end, f"{end}\n")
    lines: list[str] = []
    for line in text.splitlines():
        lines += line.split(_WORDS) if len(line) > _LONG else [line]
    return list(filter(None, (" ".join(line.split()) for line in lines)))
