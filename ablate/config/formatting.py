"""Numbers, times, sizes and lists as text, in the same format everywhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard


def format_number(value: Any, digits: int = 3) -> str:
    """Return a result as text: with a fixed number of decimals if that is readable, so that the values of a column are
    easy to compare."""
    if value is None:
        return "-"
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    if 1e3 <= abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.{digits}f}" if value == 0 or 1e-2 <= abs(value) < 1e3 else f"{value:.{digits + 1}g}"


UNBOUNDED = (-math.inf, math.inf)


def format_uncertain(
    mean: float, half_width: float | None, *, sign: bool = False, bounds: tuple[float, float] = UNBOUNDED
) -> str:
    """Return '2.153 ± 0.012': the half width of an interval in two significant digits, the mean to the same place.

    If the interval reaches beyond `bounds`, the possible range of the number, its two ends clipped to them: '0.41 [0,
    1.3]'. Without an interval, the mean in three digits.
    """
    plus = "+" if sign else ""
    if half_width is None:
        return f"{mean:{plus}.3f}" if mean == 0 or 1e-2 <= abs(mean) < 1e3 else f"{mean:{plus}.3g}"
    if half_width and not 1e-6 <= half_width < 1e6:
        return f"{mean:{plus}.6g} ± {half_width:.2g}"
    decimals = count_decimals(half_width)
    text, low, high = f"{mean:{plus}.{decimals}f}", mean - half_width, mean + half_width
    if low >= bounds[0] and high <= bounds[1]:
        return f"{text} ± {half_width:.{decimals}f}"
    ends = (f"{end:{plus}.{decimals}f}" if end not in bounds else f"{end:g}" for end in clip(low, high, bounds))
    return f"{text} [{', '.join(ends)}]"


def clip(low: float, high: float, bounds: tuple[float, float]) -> tuple[float, float]:
    """Return an interval clipped to `bounds`, the possible range of its value."""
    return max(low, bounds[0]), min(high, bounds[1])


def count_decimals(half_width: float) -> int:
    """Return the number of decimals that show two significant digits of `half_width`."""
    return max(0, 1 - math.floor(math.log10(float(f"{half_width:.1e}")))) if half_width > 0 else 3


def format_setting(value: Any) -> str:
    """Return a searched value as text: three significant digits."""
    return f"{value:.3g}" if isinstance(value, float) else "null" if value is None else str(value)


def format_settings(params: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return `params` on one line, each under its short name."""
    return " ".join(f"{names.get(path, path)}={format_setting(value)}" for path, value in params.items())


def shorten_paths(paths: Iterable[str]) -> dict[str, str]:
    """Return path -> its last segment, or the whole path if another path ends in the same segment."""
    known = list(dict.fromkeys(paths))
    tails = [path.rpartition(".")[2] for path in known]
    return {path: tail if tails.count(tail) == 1 else path for path, tail in zip(known, tails, strict=True)}


def format_count(amount: float) -> str:
    """Return a large number in three digits: '512', '26.2 k', '1.31 M'."""
    for limit, divisor, prefix in ((1e3, 1, ""), (999.5e3, 1e3, " k"), (999.5e6, 1e6, " M"), (999.5e9, 1e9, " G")):
        if amount < limit:
            return f"{amount:.0f}" if not prefix else f"{amount / divisor:.3g}{prefix}"
    return f"{amount / 1e12:.3g} T"


def format_range(least: object, most: object) -> str:
    """Return `3 to 5`, or `3` where both read the same."""
    return f"{least}" if f"{least}" == f"{most}" else f"{least} to {most}"


def format_duration(seconds: float | None) -> str:
    """Return a wall-clock time as text in a suitable unit."""
    if seconds is None:
        return "-"
    for limit, divisor, unit in ((100, 1, "s"), (6000, 60, "min"), (math.inf, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.{0 if unit == 's' and seconds >= 10 else 1}f} {unit}"
    return "-"


def format_bytes(count: int) -> str:
    """Return a number of bytes as text in a suitable unit."""
    value, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 999.95 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.{0 if units[0] == 'bytes' else 1}f} {units[0]}"


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether `value` is a finite number, which an axis can show."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def count_noun(count: int, noun: str) -> str:
    """Return '1 trial', '2 trials'."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def join_words(words: Iterable[str], last_word: str = "and") -> str:
    """Return 'a', 'a and b', 'a, b and c'."""
    *head, last = list(words) or [""]
    return f"{', '.join(head)} {last_word} {last}" if head else last


def join_first(items: Sequence[object], most: int) -> str:
    """Return the first `most` of `items`, separated by commas, and how many more there are."""
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def format_whole(numbers: Sequence[int]) -> str:
    """Return '0', '1, 2' or, of three or more in a row, '1 to 5, 1001' for ascending whole numbers."""
    parts: list[str] = []
    for _, row in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in row]
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    return ", ".join(parts)


def to_json(content: Any) -> Any:
    """Return `content` for JSON, which cannot express numbers that are not finite: each becomes null. The document, or
    each document of a list, names them under `not_finite` (dotted path -> nan, inf or -inf); a document without a
    `status` of its own, such as a run's diverged, gets one that says so.
    """
    if isinstance(content, (list, tuple)):
        return [to_json(item) for item in content]
    if not isinstance(content, Mapping):
        return _null_infinite(content, "", {})
    lost: dict[str, str] = {}
    document = _null_infinite(content, "", lost)
    return {"status": "not finite", **document, "not_finite": lost} if lost else document


def _null_infinite(value: Any, path: str, lost: dict[str, str]) -> Any:
    """Return `value` with null for numbers that are not finite, whose paths are added to `lost`."""
    if isinstance(value, Mapping):
        return {key: _null_infinite(item, f"{path}.{key}" if path else str(key), lost) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_null_infinite(item, f"{path}.{i}", lost) for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        lost[path] = str(value)
        return None
    return value
