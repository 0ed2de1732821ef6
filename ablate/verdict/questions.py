"""Scores of models on the same questions of a downstream task, and their differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.verdict.intervals import find_t_limit, least_sd_of_difference
from ablate.verdict.sequential import LEAST

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
    """Log-likelihood of each answer, in nats."""


@dataclass(frozen=True)
class Score:
    """The answers of a model to all questions of one task."""

    task: str
    metrics: dict[str, float]
    """Metrics such as acc and acc_norm (accuracy of the answer with the highest log-likelihood per character)."""
    stderr: dict[str, float]
    """Standard errors of those metrics that are means over questions."""
    questions: list[Question] = field(default_factory=list)
    shots: int = 0
    """Solved examples before each question."""
    cut: int = 0
    """Number of questions whose beginning was cut off, since they did not fit into the context with the answer."""
    long: int = 0
    """Number of questions with an answer that is longer than the context and was scored in parts."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Score:
        """Return the score for the `content` that `to_dict` returned. A value that is not a finite number becomes
        None."""
        questions = [
            Question(
                one["id"], {name: v for name, v in one["values"].items() if math.isfinite(v)}, one["loglikelihoods"]
            )
            for one in content["questions"]
        ]
        return cls(**{**content, "questions": questions})


@dataclass(frozen=True)
class QuestionDifference:
    """A mean difference of two models with the ends of its 95 % interval, over `n` questions. It holds for these two
    models only, not for other seeds of the same arms."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class SeedDifference:
    """A mean difference of two arms, over questions and seeds, with its interval."""

    mean: float
    low: float | None
    """The ends of the interval that misses the true difference with the probability `level`; None if there is no
    interval."""
    high: float | None
    n_questions: int
    n_seeds: int
    """Number of seeds in the mean, on which both arms were scored; 0: none, and the mean is that of all runs of one arm
    minus that of all runs of the other."""
    level: float
    """0: there is no interval."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The two ends."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


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
    """Return `ours` minus `baseline`, paired by question, with the percentile bootstrap over the questions that both
    have; None for fewer than two."""
    pairs = np.array([ours[question] - baseline[question] for question in ours if question in baseline])
    if (n := len(pairs)) < 2:
        return None
    generator = np.random.default_rng(SEED)
    draws = (pairs[generator.integers(n, size=(AT_ONCE, n))].mean(1) for _ in range(RESAMPLES // AT_ONCE))
    low, high = np.quantile(np.concatenate(list(draws)), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return QuestionDifference(float(pairs.mean()), float(low), float(high), n)


@dataclass(frozen=True)
class Parts:
    """The mean differences of two arms by seed, and the components of their mean's variance: seeds and questions are
    random and crossed, as all models answer the same questions."""

    by_seed: NDArray[np.float64]
    """The mean over the questions, of each seed."""
    of_questions: float
    """The questions' contribution to the variance of the overall mean, by analysis of variance; the estimate may be
    negative."""
    questions: int
    fewest: int
    """Questions of the smallest task."""
    resolution: float
    """For metrics that count answers, the step of one seed's mean; otherwise 0."""
    alike: bool
    """Whether the answers are the same on all seeds, which does not show the variation between seeds."""

    @property
    def testable(self) -> bool:
        """Whether an interval exists."""
        return len(self.by_seed) >= LEAST and self.fewest > 1 and not self.alike


def decompose(differences: NDArray[np.float64]) -> Parts:
    """Return the parts of an arm's values minus the baseline's, [seeds, questions]."""
    seeds, n = differences.shape
    by_seed, by_question, mean = differences.mean(axis=1), differences.mean(axis=0), differences.mean()
    counted = bool((differences == np.rint(differences)).all())
    alike = bool((differences == differences[:1]).all())
    of_questions = 0.0
    if seeds > 1 and n > 1:
        squares = [((differences - mean) ** 2).sum(), n * ((by_seed - mean) ** 2).sum()]
        squares.append(seeds * ((by_question - mean) ** 2).sum())
        rest = max(0.0, squares[0] - squares[1] - squares[2]) / ((seeds - 1) * (n - 1))
        of_questions = float(squares[2] / (n - 1) - rest) / (seeds * n)
    return Parts(by_seed, of_questions, n, n, 1 / n if counted else 0.0, alike)


def average_tasks(tasks: Sequence[Parts]) -> Parts:
    """Return the parts of the mean over tasks, which have the same seeds and questions of their own."""
    return Parts(
        np.mean([task.by_seed for task in tasks], axis=0),
        math.fsum(task.of_questions for task in tasks) / len(tasks) ** 2,
        sum(task.questions for task in tasks),
        min(task.fewest for task in tasks),
        max(task.resolution for task in tasks) / len(tasks),
        all(task.alike for task in tasks),
    )


def bound_difference(parts: Parts, level: float) -> SeedDifference:
    """Return the mean difference of two arms with the interval that misses the true difference with a probability of at
    most `level`; there is none at level 0, and if `parts` allow none.

    The variance of the mean is S + Q: S, with what seeds and questions do together, is that of the means of the seeds,
    with few degrees of freedom; Q is that of the questions. The interval is the mean +- sqrt(t_S^2 S + t_Q^2 Q), each t
    with its own degrees of freedom, which keeps the level whatever the share of each part (Banerjee 1961, Sankhya A 23,
    359-378). One t with degrees of freedom in between (Satterthwaite 1946) does not at the small levels that many
    comparisons share (benchmarks/downstream.py). The means of counted answers may tie: their standard deviation is at
    least that of rounding.
    """
    mean, seeds = float(parts.by_seed.mean()), len(parts.by_seed)
    if level <= 0 or not parts.testable:
        return SeedDifference(mean, None, None, parts.questions, seeds, 0.0)
    sd = max(float(parts.by_seed.std(ddof=1)), least_sd_of_difference(parts.resolution))
    squares = find_t_limit(level, seeds) ** 2 * sd**2 / seeds
    squares += find_t_limit(level, parts.fewest) ** 2 * max(0.0, parts.of_questions)
    width = math.sqrt(squares)
    return SeedDifference(mean, mean - width, mean + width, parts.questions, seeds, level)
