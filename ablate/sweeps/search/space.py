"""The search space of a sweep: ranges and lists of values, by dotted path."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from ablate.config.base import Config
from ablate.config.bounds import MOST_TRIALS

Choice = bool | int | float | str | None


class Range(Config):
    """Numbers from `low` to `high`, both included; whole numbers if both ends are whole."""

    low: int | float
    """Smallest value."""
    high: int | float
    """Largest value."""
    log: bool = False
    """Whether to search the logarithm."""
    num: int | None = Field(None, ge=2, le=MOST_TRIALS)
    """For the grid: number of values, evenly spaced (in the logarithm if `log`)."""

    @model_validator(mode="after")
    def _check_ends(self) -> Range:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        if self.log and self.low <= 0:
            raise ValueError(f"low ({self.low}) must be above 0 if log is true")
        return self

    @property
    def whole(self) -> bool:
        """True where the values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def ends(self) -> list[Choice]:
        """Return the two ends, for validation."""
        return [self.low, self.high]

    @property
    def count(self) -> int | None:
        """The number of values that samplers choose from; None: any between the ends. `num` is for the grid alone."""
        return int(self.high - self.low) + 1 if self.whole else None

    def grid(self) -> list[Choice]:
        """Return the values of a grid. Raises ValueError if there are infinitely many without `num`."""
        if self.num is not None:
            low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
            points = [low + (high - low) * i / (self.num - 1) for i in range(self.num)]
            values = [float(f"{math.exp(p) if self.log else p:.6g}") for p in points]
            return list(dict.fromkeys(round(v) if self.whole else v for v in values))
        if (count := self.count) is None:
            raise ValueError("a grid needs a list of values, or num in addition to low and high")
        if count > MOST_TRIALS:
            raise ValueError(f"{count:,} values, and a grid has at most {MOST_TRIALS:,}; set num")
        return [self.low + index for index in range(count)]


def _parse_entry(value: Any) -> Range | list[Choice]:
    if isinstance(value, (Range, Mapping)):
        return value if isinstance(value, Range) else Range.model_validate(value)
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, Choice) for v in value):
        for i, one in enumerate(value):
            if one in value[:i]:  # also 1 and true, or 1 and 1.0, which the storage of a search cannot tell apart
                same = {"first": repr(value[value.index(one)]), "one": repr(one)}
                raise PydanticCustomError("entry", "has the same value twice: {first} and {one}. Remove one", same)
        return list(value)
    raise PydanticCustomError("entry", "must be a list of values, or a mapping with low and high")


def _dump_entry(entry: Range | list[Choice]) -> Any:
    return entry.model_dump(mode="json", exclude_none=True) if isinstance(entry, Range) else list(entry)


Entry = Annotated[
    Range | list[Choice],
    PlainValidator(_parse_entry, json_schema_input_type=Range | list[Choice]),
    PlainSerializer(_dump_entry, return_type=Any),
]
Space = Mapping[str, Range | Sequence[Choice]]


def contains(entry: Range | Sequence[Choice], value: Choice) -> bool:
    """Return whether `value` is one of a list, or within a range."""
    if not isinstance(entry, Range):
        return any(value == known and type(value) is type(known) for known in entry)
    if isinstance(value, bool) or not isinstance(value, int if entry.whole else (int, float)):
        return False
    return entry.low <= value <= entry.high


def format_entry(entry: Any) -> str:
    """Return a short text for a range, a list or a single value."""
    if isinstance(entry, Range):
        parts = f" in {entry.num}" if entry.num else ""
        return f"{entry.low:g} ... {entry.high:g}{' (log)' if entry.log else ''}{parts}"
    return "none" if entry is None else str(entry)


def count_points(space: Space) -> int | None:
    """Return the number of points of a space that samplers choose from; None if there are infinitely many."""
    counts = [entry.count if isinstance(entry, Range) else len(entry) for entry in space.values()]
    return None if None in counts else math.prod(counts)  # type: ignore[arg-type]


def replace_repeated(
    point: Mapping[str, Choice], free: Sequence[str], taken: Iterable[Mapping[str, Choice]], space: Space, seed: int
) -> dict[str, Choice]:
    """Return `point` or, if it is one of `taken`, one that is not: with values of the `free` paths that are drawn at
    random. It stays as it is if these have a continuous range, or only values that are taken."""
    found, count = dict(point), count_points({path: space[path] for path in free})
    if count is None:
        return found
    known = {_index_point(space, other) for other in taken if other.keys() >= space.keys()}
    place = dict(zip(space, _index_point(space, point), strict=True))
    fixed = [(i, place[path]) for i, path in enumerate(space) if path not in free]
    if sum(all(other[i] == index for i, index in fixed) for other in known) >= count:
        return found
    rng = random.Random(seed)
    while _index_point(space, found) in known:
        for path in free:
            entry = space[path]
            found[path] = entry.low + rng.randrange(entry.count or 1) if isinstance(entry, Range) else rng.choice(entry)
    return found


def _index_point(space: Space, point: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the place of each value in its list; for a range, the value itself."""
    return tuple(point[path] if isinstance(entry, Range) else entry.index(point[path]) for path, entry in space.items())


def list_cells(space: Space) -> list[dict[str, Choice]]:
    """Return every combination of the grid of each entry. Raises ValueError if there are too many."""
    grids = [entry.grid() if isinstance(entry, Range) else list(entry) for entry in space.values()]
    if (count := math.prod(map(len, grids))) > MOST_TRIALS:
        raise ValueError(f"{count:,} combinations, and a grid has at most {MOST_TRIALS:,}; remove some values")
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*grids)]
