"""Checks of learning-rate schedules: factors on the peak rate, and their course in a resumed run."""

from __future__ import annotations

import itertools
import math

from ablate.diagnostics.checks.base import CheckFailedError, Settings, add_check
from ablate.diagnostics.checks.models import check_resumption
from ablate.diagnostics.checks.subject import build_subject

PART = "schedule"
_LENGTHS = (1, 2, 10, 1000)


@add_check(PART, "factors")
def check_factors(kind: str, settings: Settings) -> str:
    """Check that the factors are from 0 to 1, rise in the warm-up and reach the peak."""
    schedule = build_subject({"schedule.kind": kind}, settings).experiment.schedule
    for steps in _LENGTHS:
        factors = [schedule.factor(step, steps) for step in range(steps + 1)]
        warmup = schedule.warmup(steps)
        for step, factor in enumerate(factors):
            if not (math.isfinite(factor) and 0 <= factor <= 1 + 1e-9):
                raise CheckFailedError(f"the factor of update {step + 1} of {steps} is {factor:g}, not from 0 to 1")
        if any(b < a for a, b in itertools.pairwise(factors[:warmup])):
            raise CheckFailedError(f"the factor falls during the warm-up of {warmup} of {steps} updates")
        if factors[-1] != factors[-2]:
            raise CheckFailedError(f"the factor after {steps} updates is not that of the last update")
    if max(factors) < 0.99:
        raise CheckFailedError(
            f"the peak rate is never reached: the largest factor of {steps} updates is {max(factors):g}"
        )
    return f"peak {max(factors):.3g}, last {factors[-1]:.3g} of {steps} updates"


@add_check(PART, "resume")
def check_resume(kind: str, settings: Settings) -> None:
    """Check that resumed updates equal uninterrupted ones."""
    check_resumption(build_subject({"schedule.kind": kind}, settings))
