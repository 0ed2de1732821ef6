"""Whether sizes of activations, and of their change, are the same at all widths and depths."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.diagnostics.coordinates.recording import EMBEDDING, FINAL_NORM, LOGITS, Course
from ablate.diagnostics.measures.base import to_json_number

FLAT = 1.1
"""The largest ratio between the sizes of two models that counts as flat: 10 %."""
QUANTITIES = {"activation": "activations at initialisation", "change": "change since initialisation"}
LAYERS = "layers"
GROUPS = (LAYERS, "sublayers", LOGITS)


@dataclass(frozen=True)
class Flatness:
    """How much one quantity of one group of parts differs between the sizes along an axis."""

    axis: str
    """"width" or "depth"."""
    quantity: str
    """One of `QUANTITIES`: activations before the first update, or their change after the last one."""
    group: str
    """One of `GROUPS`: embedding, outputs of layers and of the final norm; outputs of attention and MLP; logits."""
    part: str
    """The part of the group that differs most."""
    ratio: float
    """Its largest value over its smallest."""
    ratio_without_smallest: float
    """The largest ratio of any part of the group without the smallest model; NaN if two sizes are compared."""
    exponent: float
    """Of the power of the width or depth that fits that part: the slope of its logarithm."""

    @property
    def is_flat(self) -> bool:
        """Whether the largest ratio is at most `FLAT`."""
        return self.ratio <= FLAT

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a number that is not finite is null."""
        numbers = {
            name: to_json_number(getattr(self, name)) for name in ("ratio", "ratio_without_smallest", "exponent")
        }
        words = {name: getattr(self, name) for name in ("axis", "quantity", "group", "part")}
        return {**words, **numbers, "flat": self.is_flat}


def judge(axis: str, courses: Mapping[int, Course]) -> list[Flatness]:
    """Return the flatness of each group and quantity along an axis. `courses`: size -> what was recorded, the smallest
    size first."""
    parts = align(axis, courses)
    judged = []
    for group in GROUPS:
        own = {name: values for name, values in parts.items() if find_group(name) == group}
        if own:
            judged.append(_judge_group(axis, "activation", group, own, list(courses), lambda course: course[0][0]))
            judged.append(_judge_group(axis, "change", group, own, list(courses), lambda course: course[-1][1]))
    return judged


def find_group(part: str) -> str:
    """Return the group of a part."""
    return LOGITS if part == LOGITS else GROUPS[1] if part.endswith((" attention", " mlp")) else LAYERS


def align(axis: str, courses: Mapping[int, Course]) -> dict[str, list[Sequence[tuple[float, float]]]]:
    """Return part -> its course at each size. Widths have the same layers. Depths have not: compared are the layer half
    way and the last one, as another layer has another share of the others below it."""
    if axis == "width":
        return {part: [course[part] for course in courses.values()] for part in next(iter(courses.values()))}
    parts = [EMBEDDING, *(f"{place}{own}" for place in (HALF_WAY, LAST) for own in _SUBLAYERS), FINAL_NORM, LOGITS]
    placed = {
        part: {
            depth: part.replace(HALF_WAY, f"layer {max(1, depth // 2)}").replace(LAST, f"layer {depth}")
            for depth in courses
        }
        for part in parts
    }
    return {
        part: [courses[depth][own] for depth, own in names.items()]
        for part, names in placed.items()
        if all(own in courses[depth] for depth, own in names.items())
    }


HALF_WAY, LAST = "layer half way", "last layer"
_SUBLAYERS = (" attention", " mlp", "")


def _judge_group(
    axis: str,
    quantity: str,
    group: str,
    parts: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    sizes: Sequence[int],
    read: Callable[[Sequence[tuple[float, float]]], float],
) -> Flatness:
    values = {part: [read(course) for course in own] for part, own in parts.items()}
    worst = max(values, key=lambda part: find_ratio(values[part]))
    rest = max(find_ratio(own[1:]) for own in values.values()) if len(sizes) > 2 else math.nan
    return Flatness(axis, quantity, group, worst, find_ratio(values[worst]), rest, find_exponent(sizes, values[worst]))


def find_ratio(values: Sequence[float]) -> float:
    """Return the largest of `values` over the smallest; infinite if one is not finite or only some are zero."""
    if not all(map(math.isfinite, values)):
        return math.inf
    return max(values) / min(values) if min(values) > 0 else 1.0 if max(values) == 0 else math.inf


def find_exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return the slope of the logarithm of `values` over that of `sizes`, by least squares; NaN if a value has no
    logarithm."""
    if not all(0 < value < math.inf for value in values):
        return math.nan
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mean = math.fsum(x) / len(x)
    return math.fsum((a - mean) * b for a, b in zip(x, y, strict=True)) / math.fsum((a - mean) ** 2 for a in x)
