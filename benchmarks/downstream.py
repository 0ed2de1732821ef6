"""Downstream differences of arms over questions and seeds, in simulation: false claims, coverage and power of the
interval that the report prints, beside other intervals.

    python benchmarks/downstream.py                       # the whole table
    python benchmarks/downstream.py --seeds 3 --questions 500 --tables 200

A table has 7 tasks, a baseline and two arms, so 16 comparisons with the averages over tasks. A model answers a question
rightly where ability + easiness + noise > 0: easiness varies over questions, noise over questions and models (little of
it, and models answer alike), ability over the seeds of an arm (half of it common to all tasks) and, where arms vary,
over its questions. `seed sd` is that of the accuracy over seeds, in units of the sampling sd of the questions,
sqrt(p (1 - p) / questions).
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import stdtrit

from ablate.verdict.intervals import find_t_limit
from ablate.verdict.questions import Parts, average_tasks, bound_difference, decompose

TASKS, ARMS, ACCURACY, ALPHA = 7, 2, 0.55, 0.05
FAMILY = (TASKS + 1) * ARMS
Tables = list[NDArray[np.float64]]


@dataclass(frozen=True)
class Cell:
    """What is simulated."""

    seeds: int
    questions: int
    ratio: float
    """The sd of the accuracy over seeds, in sampling sds of the questions."""
    varied: float
    """The sd over questions of what an arm is better at, in units of the sd of their easiness."""
    noise: float = 1.0
    """The sd of what the answer of one model to one question is due to, in the same units."""
    heavy: bool = False
    """Whether seeds follow Student's t with 3 degrees of freedom, not a normal distribution."""


def simulate_table(cell: Cell, effect: float, generator: np.random.Generator) -> tuple[list[Tables], float]:
    """Return for each arm of one table the differences of its tasks [seeds, questions] from the baseline, and the true
    difference, of which `effect` is the latent one."""
    variance = 1.0 + cell.noise**2 + cell.varied**2
    mean = stats.norm.ppf(ACCURACY) * math.sqrt(variance)
    slope = stats.norm.pdf(stats.norm.ppf(ACCURACY)) / math.sqrt(variance)
    sd = cell.ratio * math.sqrt(ACCURACY * (1 - ACCURACY) / cell.questions) / slope
    easiness = generator.standard_normal((TASKS, 1, cell.questions), dtype=np.float32)

    def draw_seeds(shape: tuple[int, ...]) -> NDArray[np.float64]:
        return generator.standard_t(3, shape) / math.sqrt(3) if cell.heavy else generator.standard_normal(shape)

    answers = []
    for arm in range(1 + ARMS):
        ability = sd * (draw_seeds((TASKS, cell.seeds, 1)) + draw_seeds((1, cell.seeds, 1))) / math.sqrt(2)
        own = cell.varied * generator.standard_normal((TASKS, 1, cell.questions), dtype=np.float32)
        noise = np.float32(cell.noise) * generator.standard_normal(
            (TASKS, cell.seeds, cell.questions), dtype=np.float32
        )
        shift = np.float32(mean + (effect if arm else 0.0))
        answers.append((easiness + own + noise + (ability + shift).astype(np.float32) > 0).astype(np.float64))
    spread = math.sqrt(variance + sd**2)
    truth = float(stats.norm.cdf((mean + effect) / spread) - stats.norm.cdf(mean / spread))
    return [[a - b for a, b in zip(answers[1 + arm], answers[0], strict=True)] for arm in range(ARMS)], truth


def list_comparisons(arms: list[Tables]) -> Iterator[Parts]:
    """Yield the parts of each comparison of a table: each task, and the average of all, of each arm."""
    for tasks in arms:
        parts = [decompose(task) for task in tasks]
        yield from parts
        yield average_tasks(parts)


# ------------------------------------------------------------------------------------------- intervals: half width


def bound_by_report(parts: Parts, level: float) -> float:
    """Return the half width of the report's interval."""
    found = bound_difference(parts, level)
    return math.inf if found.high is None else found.high - found.mean


def bound_by_seeds(parts: Parts, level: float) -> float:
    """Return that of Student's t over the means of the seeds: the questions are these, and no others."""
    return find_t_limit(level, len(parts.by_seed)) * math.sqrt(_seed_variance(parts))


def bound_by_satterthwaite(parts: Parts, level: float) -> float:
    """Return that of one t with Satterthwaite's degrees of freedom for the sum of both variances."""
    of_seeds, of_questions = _seed_variance(parts), max(0.0, parts.of_questions)
    total = of_seeds + of_questions
    if not total:
        return 0.0
    freedom = total**2 / (of_seeds**2 / (len(parts.by_seed) - 1) + of_questions**2 / (parts.fewest - 1))
    return -float(stdtrit(freedom, level / 2)) * math.sqrt(total)


def bound_by_widening(parts: Parts, level: float) -> float:
    """Return that of the sum of both variances with the t of the seeds: a bootstrap of seeds crossed with questions,
    widened for few seeds."""
    total = _seed_variance(parts) + max(0.0, parts.of_questions)
    return find_t_limit(level, len(parts.by_seed)) * math.sqrt(total)


def _seed_variance(parts: Parts) -> float:
    return float(parts.by_seed.var(ddof=1)) / len(parts.by_seed)


METHODS: dict[str, Callable[[Parts, float], float]] = {
    "ours": bound_by_report,
    "seeds": bound_by_seeds,
    "Satterthwaite": bound_by_satterthwaite,
    "widened": bound_by_widening,
}


@dataclass
class Counts:
    """Of one method: shares of tables, and of comparisons."""

    false_claims: float = 0.0
    """Tables of equal arms in which a difference is claimed."""
    coverage: float = 0.0
    """Comparisons of which the 95 % interval holds the truth, with and without a true difference."""
    found: float = 0.0
    """Comparisons with the true difference of which it is claimed, at the level of the family."""


def measure(cell: Cell, tables: int, effect: float, names: list[str], seed: int = 0) -> dict[str, Counts]:
    """Return what each method does in `tables` tables of equal arms, and as many with a difference."""
    generator = np.random.default_rng(
        [seed, cell.seeds, cell.questions, round(10 * cell.ratio), round(10 * cell.varied)]
    )
    counts = {name: Counts() for name in names}
    for shift in (0.0, effect):
        for _ in range(tables):
            arms, truth = simulate_table(cell, shift, generator)
            comparisons = list(list_comparisons(arms))
            for name in names:
                wrong = False
                for parts in comparisons:
                    mean = float(parts.by_seed.mean())
                    counts[name].coverage += (abs(mean - truth) <= METHODS[name](parts, ALPHA)) / (2 * tables * FAMILY)
                    width = METHODS[name](parts, ALPHA / FAMILY)
                    if shift:
                        counts[name].found += (mean > width) / (tables * FAMILY)
                    wrong = wrong or abs(mean) > width
                if not shift:
                    counts[name].false_claims += wrong / tables
    return counts


def main() -> None:
    """Print a row for each cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 5, 10])
    parser.add_argument("--questions", type=int, nargs="+", default=[100, 500, 2000])
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.0, 1.0, 2.0])
    parser.add_argument("--varied", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--noise", type=float, nargs="+", default=[1.0])
    parser.add_argument("--heavy", action="store_true", help="seeds of Student's t with 3 degrees of freedom")
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument("--effect", type=float, default=0.5, help="the latent difference that is to be found")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    options = parser.parse_args()
    print(
        f"{FAMILY} comparisons; each method: % false claims over a table, % coverage of 95 %, % found at the family's"
    )
    print("seeds questions seed_sd varied noise " + " ".join(f"{name:>16}" for name in options.methods))
    for seeds, questions, ratio, varied, noise in itertools.product(
        options.seeds, options.questions, options.ratios, options.varied, options.noise
    ):
        cell = Cell(seeds, questions, ratio, varied, noise, options.heavy)
        counts = measure(cell, options.tables, options.effect, options.methods)
        shown = (f"{100 * c.false_claims:5.1f} {100 * c.coverage:4.1f} {100 * c.found:5.1f}" for c in counts.values())
        print(f"{seeds:5} {questions:9} {ratio:7.1f} {varied:6.1f} {noise:5.1f} " + " ".join(shown), flush=True)


if __name__ == "__main__":
    main()
