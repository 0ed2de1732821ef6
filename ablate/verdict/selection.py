"""Choosing among the candidates of an arm, by their outcomes on selection seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ablate.verdict.outcomes import Outcome


def choose_candidate(values: Sequence[float], outcomes: Sequence[Mapping[int, Outcome]], maximize: bool = False) -> int:
    """Return the index of the candidate that failed on the fewest selection seeds; among equals, the one with the best
    mean over the seeds on which it trained; then the one with the better objective in the search.

    Args:
        values: the objective of each candidate in the search.
        outcomes: of each candidate: selection seed -> outcome, the same seeds for all.
        maximize: whether more of the objective is better.
    """
    sign = -1 if maximize else 1

    def rank(i: int) -> tuple[int, float, float]:
        trained = [o.value for o in outcomes[i].values() if o.trained and o.value is not None]
        mean = sign * math.fsum(trained) / len(trained) if trained else math.inf
        return len(outcomes[i]) - len(trained), mean, sign * values[i]

    return min(range(len(values)), key=rank)
