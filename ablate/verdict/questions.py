"""Scores of models on the same questions of a downstream task, and their differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

RESAMPLES, AT_ONCE, SEED = 10_000, 250, 0
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Question:
    """The answer of a model to one question."""

    id: str
    """A hash of the question; the same for all models."""
    values: dict[str, float]
    """Metric -> value, such as acc -> 1.0."""
    loglikelihoods: list[float]
    """Of each answer, in nats."""


@dataclass(frozen=True)
class Score:
    """The answers of a model to all questions of one task."""

    task: str
    metrics: dict[str, float]
    """Such as acc and acc_norm (the answer with the highest log-likelihood for each of its characters)."""
    stderr: dict[str, float]
    """Standard errors of those metrics that are means over questions."""
    questions: list[Question] = field(default_factory=list)
    shots: int = 0
    """Solved examples before each question."""
    cut: int = 0
    """Questions that lost their beginning, since it did not fit into the context with the answer."""
    long: int = 0
    """Questions of which an answer is longer than the context, and was scored part by part."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Score:
        """Return the score of which `to_dict` returned `content`."""
        return cls(**{**content, "questions": [Question(**question) for question in content["questions"]]})


@dataclass(frozen=True)
class QuestionDifference:
    """A mean difference with the ends of its 95 % interval, over `n` questions."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def shown(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def average_by_question(scores: Sequence[Score], metric: str) -> dict[str, float]:
    """Return question -> the mean of `metric` over the runs of an arm. Questions that are asked twice stay apart."""
    values: dict[str, list[float]] = {}
    for score in scores:
        seen: dict[str, int] = {}
        for question in score.questions:
            if metric in question.values:
                seen[question.id] = seen.get(question.id, 0) + 1
                values.setdefault(f"{question.id} {seen[question.id]}", []).append(question.values[metric])
    return {question: math.fsum(runs) / len(runs) for question, runs in values.items() if len(runs) == len(scores)}


def compare_by_question(ours: Mapping[str, float], baseline: Mapping[str, float]) -> QuestionDifference | None:
    """Return `ours` less `baseline`, paired by question, with the percentile bootstrap over the questions that both
    have; None for fewer than two."""
    pairs = np.array([ours[question] - baseline[question] for question in ours if question in baseline])
    if (n := len(pairs)) < 2:
        return None
    generator = np.random.default_rng(SEED)
    draws = (pairs[generator.integers(n, size=(AT_ONCE, n))].mean(1) for _ in range(RESAMPLES // AT_ONCE))
    low, high = np.quantile(np.concatenate(list(draws)), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return QuestionDifference(float(pairs.mean()), float(low), float(high), n)
