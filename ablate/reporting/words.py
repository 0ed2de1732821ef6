"""How numbers, times and names are written, the same in tables, figures and sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from ablate.errors import ConfigError
from ablate.sweeping.spec import Sweep

LEARNING_RATE = "optimizer.lr"
ALPHA = "norm.alpha"

_SPOKEN = {LEARNING_RATE: "learning rate", ALPHA: "alpha"}
_UNITS = {ALPHA: "share of the layers"}


def number(value: Any, digits: int = 4) -> str:
    """A result: fixed decimals where that is readable, so that a column of them compares at a glance."""
    if value is None:
        return "-"
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    return f"{value:.{digits}f}" if value == 0 or 1e-2 <= abs(value) < 1e3 else f"{value:.{digits + 1}g}"


def setting(value: Any) -> str:
    """A searched value: three significant digits."""
    return f"{value:.3g}" if isinstance(value, float) else "null" if value is None else str(value)


def settings(params: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """`params` on one line, each under its short name."""
    return " ".join(f"{names.get(path, path)}={setting(value)}" for path, value in params.items())


def duration(seconds: float | None) -> str:
    """Wall-clock time in the unit that suits it."""
    if seconds is None:
        return "-"
    for limit, divisor, unit in ((100, 1, "s"), (6000, 60, "min"), (math.inf, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.{0 if unit == 's' and seconds >= 10 else 1}f} {unit}"
    return "-"


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether `value` can stand on an axis."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def plural(count: int, noun: str) -> str:
    """'1 trial', '2 trials'."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(words: Iterable[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    *head, last = list(words) or [""]
    return f"{', '.join(head)} and {last}" if head else last


def searched(spec: Sweep) -> list[str]:
    """Every path that some arm searches: the learning rate and alpha first, the others in the order of the file."""
    paths = list(dict.fromkeys(path for arm in spec.all_arms for path in spec.space(arm)))
    return sorted(paths, key=lambda path: (path != LEARNING_RATE, path != ALPHA))


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Path -> its last segment, or the whole path where another one ends the same."""
    known = list(dict.fromkeys(paths))
    tails = [path.rpartition(".")[2] for path in known]
    return {path: tail if tails.count(tail) == 1 else path for path, tail in zip(known, tails, strict=True)}


def parameter_name(path: str) -> str:
    """What a searched path is called in prose."""
    return _SPOKEN.get(path) or path.rpartition(".")[2].replace("_", " ")


def parameter_label(path: str) -> str:
    """The axis of a searched path, with its unit where it has one."""
    return f"{parameter_name(path)} ({', '.join([path, *([_UNITS[path]] if path in _UNITS else [])])})"


def metric_label(metric: str, spec: Sweep) -> str:
    """The axis of a metric, with its unit."""
    token = "image" if task(spec) == "image_classification" else "token"
    units = {
        "val/loss": f"nats per {token}",
        "val/bits_per_byte": "bits per byte of text",
        "val/accuracy": "share of images",
        "val/perplexity": f"per {token}",
    }
    return f"{metric} ({units[metric]})" if metric in units else metric


def task(spec: Sweep) -> str:
    """What the models are trained for, or '' where the sweep's experiments cannot be built (a plugin is missing)."""
    try:
        return spec.base(next(iter(spec.all_arms))).data.task
    except ConfigError:
        return ""
