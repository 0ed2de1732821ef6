"""How much of a validation set is also training data, by content: of a text by its passages, of other data by items."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

from ablate.config.errors import DataError

logger = logging.getLogger(__name__)

RECIPE = 1
"""Incremented whenever the same texts would give another overlap."""
PASSAGE = 1000
"""Characters, about 200 tokens, of the passages into which long documents are cut."""
_SENTENCES = (". ", "! ", "? ", "。")
"""Ends of sentences, at which lines are cut."""
_LONG, _WORDS = 400, "e "
"""Characters of a line that is cut although it has no sentences, and the ends of words behind which it is."""


class Overlap(NamedTuple):
    """What is shared by training and validation."""

    share: float
    """The part of the validation set that is training data, from 0 to 1."""
    example: str
    """The beginning of a shared passage or the name of a shared item; "" for none."""


def measure_texts(train: Iterable[str], val: Iterable[str]) -> Overlap:
    """Return the share of the validation text, in characters, that is in copied passages: those of which more than half
    are lines, or sentences, of the training text, in whatever order they are there. A few lines that both have by
    chance, such as a heading or a licence, make no copy."""
    passages = list(_cut_passages(val))
    wanted = {line for passage in passages for line in passage}
    found: set[str] = set()
    for text in train:
        found.update(wanted.intersection(_cut_text(text)))
    total, copied, example = 0, 0, ""
    for passage in passages:
        size, known = sum(map(len, passage)), sum(len(line) for line in passage if line in found)
        total += size
        if 2 * known > size:
            copied += size
            example = max(example, next(line for line in passage if line in found)[:60], key=len)
    return Overlap(copied / total if total else 0.0, example)


def measure_items(train: Iterable[Hashable], val: Iterable[Hashable]) -> Overlap:
    """Return the share of the validation items that are equal to a training item, and the number of the first one."""
    known = set(train)
    copies = [item in known for item in val]
    share = sum(copies) / len(copies) if copies else 0.0
    return Overlap(share, f"item {copies.index(True)}" if share else "")


def check_overlap(overlap: Overlap, most: float, what: str, held_out: bool = False) -> str:
    """Return the share as a part of a description of the data; "" without any. Raises DataError for more than `most`;
    where the validation set is held out of data with copies, a warning tells it. `what` is its name."""
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
    """Return the lines of a text, cut into sentences, without spaces around them."""
    for end in _SENTENCES:
        text = text.replace(end, f"{end}\n")
    lines: list[str] = []
    for line in text.split("\n"):
        parts = line.split(_WORDS) if len(line) > _LONG else [line]
        lines += filter(None, map(str.strip, parts))
    return lines


def _cut_passages(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield the passages of texts, each as its lines: a short text, or about `PASSAGE` characters of a long one."""
    for text in texts:
        passage: list[str] = []
        size = 0
        for line in _cut_text(text):
            passage.append(line)
            size += len(line)
            if size >= PASSAGE:
                yield passage
                passage, size = [], 0
        if passage:
            yield passage
