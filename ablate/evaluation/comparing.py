"""Two models, or two arms, on the same questions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ablate.evaluation.scoring import Score

RESAMPLES, AT_ONCE, SEED = 10_000, 250, 0
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """A mean difference with the ends of its 95 % interval, over `n` questions."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def shown(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def by_question(scores: Sequence[Score], metric: str) -> dict[str, float]:
    """Question -> the mean of `metric` over the runs of an arm. Questions that are asked twice are told apart."""
    values: dict[str, list[float]] = {}
    for score in scores:
        seen: dict[str, int] = {}
        for question in score.questions:
            if metric in question.values:
                seen[question.id] = seen.get(question.id, 0) + 1
                values.setdefault(f"{question.id} {seen[question.id]}", []).append(question.values[metric])
    return {question: math.fsum(found) / len(found) for question, found in values.items() if len(found) == len(scores)}


def difference(ours: Mapping[str, float], baseline: Mapping[str, float]) -> Difference | None:
    """`ours` less `baseline`, paired by question: the percentile bootstrap over the questions that both have; None for
    fewer than two."""
    pairs = np.array([ours[question] - baseline[question] for question in ours if question in baseline])
    if (n := len(pairs)) < 2:
        return None
    generator = np.random.default_rng(SEED)
    draws = (pairs[generator.integers(n, size=(AT_ONCE, n))].mean(1) for _ in range(RESAMPLES // AT_ONCE))
    low, high = np.quantile(np.concatenate(list(draws)), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Difference(float(pairs.mean()), float(low), float(high), n)
