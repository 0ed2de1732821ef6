"""JSON that somebody else has written."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

MOST_LEVELS = 100
"""The deepest nesting: code that walks through values recurses once for each level, and Python allows about 1,000
calls."""


def parse_json(text: str) -> Any:
    """Return the value of JSON. Raises ValueError for text that is not JSON, for more than 100 levels, and for numbers
    that are not finite, which JSON does not have and Python accepts."""
    deep = ValueError(f"it is nested more than {MOST_LEVELS} levels deep")
    try:
        value = json.loads(text)
    except RecursionError:
        raise deep from None
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        if any(isinstance(item, float) and not math.isfinite(item) for item in level):
            raise ValueError("it has a number that is not finite")
        inside = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (dict, list))]
        if not inside:
            return value
        level = list(itertools.chain.from_iterable(inside))
    raise deep
