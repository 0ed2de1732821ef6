"""The report as plain values, for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ablate.sweeps.runs import Run


def to_plain(value: Any) -> Any:
    """Return `value` with null for values that JSON cannot express."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def trial_to_plain(trial: Run) -> dict[str, Any]:
    """Return a trial; its curve is a list of [updates, objective]."""
    curve = [[step, to_plain(value)] for step, value in sorted(trial.curve.items())]
    return {**to_plain(asdict(trial)), "curve": curve}
