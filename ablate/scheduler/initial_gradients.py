"""Arms of a sweep whose gradient at initialisation is far from that of the others: often a baseline that does not start
as its paper means it, which no learning rate mends."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ablate.config.formatting import format_number
from ablate.sweeps.spec.sweep import Sweep

if TYPE_CHECKING:
    from ablate.data import Corpus, DataConfig

FACTOR = 10.0
"""How many times the others' median a gradient norm must be to be told, or which part of it."""


def measure_initial_gradients(spec: Sweep, corpora: Mapping[DataConfig, Corpus]) -> dict[str, float]:
    """Return arm of the file -> norm of its gradient at initialisation, without arms that start from another model,
    those of an alignment, and those that are too large to be measured and cannot be narrowed."""
    from ablate.training.initial_gradient import measure_initial_gradient

    plain = spec.without_grid()
    bases = {arm: plain.base(arm) for arm in plain.all_arms}
    norms = {
        arm: measure_initial_gradient(base, corpora[base.data])
        for arm, base in bases.items()
        if base.procedure == "training" and base.warm_start is None and base.lora is None
    }
    return {arm: norm for arm, norm in norms.items() if norm is not None}


def describe_outlying_gradients(norms: Mapping[str, float]) -> Iterator[str]:
    """Yield a sentence for each arm whose gradient norm is not finite, is `FACTOR` times the median of the others', or
    a `FACTOR`th of it. Arms: name -> norm."""
    for arm, norm in norms.items():
        if not math.isfinite(norm):
            yield f"WARNING: {arm}: its gradient at initialisation is not finite, so that it cannot train"
            continue
        others = [other for name, other in norms.items() if name != arm and math.isfinite(other)]
        if not others:
            continue
        median = statistics.median(others)
        if norm >= FACTOR * median or norm * FACTOR <= median:
            yield (
                f"WARNING: {arm}: the norm of its gradient at initialisation is {format_number(norm)}, the median of "
                f"the others is {format_number(median)}. Compare its initialisation with what its source says"
            )
