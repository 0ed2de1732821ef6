"""Outcomes of seeds, the definition of a failure, and the choice among candidates by their outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ablate.config.formatting import format_number

LEARNED = 0.02
"""Share of the trivial loss by which a run's last validation loss must be below it; otherwise the run is stuck."""
LOSS = "val/loss"
Ending = Literal["trained", "stuck", "diverged"]


@dataclass(frozen=True)
class Outcome:
    """How one seed ended. A failure is an outcome too, and stays in the comparison."""

    ending: Ending
    """trained; stuck: it ran to its end without learning; diverged."""
    value: float | None = None
    """The objective; None if it diverged."""

    @property
    def trained(self) -> bool:
        """Whether it trained, so that its value counts."""
        return self.ending == "trained"


def classify(loss: float | None, trivial_loss: float | None) -> Ending:
    """Return the outcome of a run that ended with the validation loss `loss`.

    Args:
        loss: the last validation loss; None: it has none, and is trained.
        trivial_loss: the loss of a predictor that ignores its inputs, such as one that knows the frequencies of tokens
            or classes. None: unknown; nothing is called stuck.
    """
    if loss is None:
        return "trained"
    if not math.isfinite(loss):
        return "diverged"
    known = trivial_loss is not None and trivial_loss > 0
    return "stuck" if known and loss >= (1 - LEARNED) * (trivial_loss or 0.0) else "trained"


def classify_value(value: float | None, trivial: float | None, maximize: bool) -> Ending:
    """Return the outcome of a run that ended with the objective `value`, where `trivial` is that of a run which has
    learned nothing: no better is stuck. None: unknown; nothing is called stuck."""
    if value is None or trivial is None:
        return "trained"
    if not math.isfinite(value):
        return "diverged"
    return "stuck" if (value <= trivial if maximize else value >= trivial) else "trained"


def state_rule(trivial_loss: float | None, objective: str = "", maximize: bool | None = None) -> str:
    """Return the sentence that defines a failure. `maximize`: as of `Runs`, with the name of the objective."""
    if maximize is not None:
        if trivial_loss is None:
            return (
                "A seed fails when it diverges. Whether one that ran to its end has learned is not known: no trivial "
                "value is given."
            )
        return (
            f"A seed fails when it diverges or is stuck: it ends at a {objective} of {format_number(trivial_loss)} or "
            f"{'less' if maximize else 'more'}, the trivial value that the file gives."
        )
    if trivial_loss is None:
        return (
            "A seed fails when it diverges. Whether a seed that ran to its end has learned is unknown, since the "
            "trivial loss is unknown."
        )
    return (
        "A seed fails when it diverges or is stuck: it ends at a validation loss of "
        f"{format_number((1 - LEARNED) * trivial_loss)} or more, {100 * (1 - LEARNED):.0f} % of the trivial loss of "
        f"{format_number(trivial_loss)}, that of a predictor that ignores its inputs."
    )


def race(
    values: Sequence[float | None],
    outcomes: Sequence[Mapping[int, Outcome]],
    seeds: Sequence[int],
    least: int,
    maximize: bool = False,
    effect: float | None = None,
) -> tuple[list[int], int | None]:
    """Return on how many of `seeds` each candidate is to be run, and the index of the one that is chosen; None while
    runs are missing.

    All candidates are run on `least` seeds, and further ones, up to all, while they failed on as few as the best and
    are within two standard errors of it, if that may cost half of `effect`. Each candidate's run of the search counts
    as one more seed: given the values of all candidates, being the best of them adds nothing (a posterior mean under
    one normal prior for all, which shrinks them alike, ranks them by their means).

    Args:
        values: the objective of each candidate in the search; None: it did not run to its end there.
        outcomes: of each candidate: selection seed -> outcome.
        seeds: the selection seeds, in their order.
        least: seeds of every candidate.
        maximize: whether more of the objective is better.
        effect: the smallest difference that matters; None: every difference may.
    """
    sign, needed, racing = -1 if maximize else 1, [least] * len(values), [*range(len(values))]
    for count in range(least, len(seeds) + 1):
        used = seeds[:count]
        if any(seed not in outcomes[i] for i in racing for seed in used):
            return needed, None
        failures = [sum(not outcomes[i][seed].trained for seed in used) for i in racing]
        racing = [i for i, failed in zip(racing, failures, strict=True) if failed == min(failures)]
        whole = [seed for seed in used if all(outcomes[i][seed].trained for i in racing)]
        rows = [[sign * (outcomes[i][seed].value or 0.0) for seed in whole] for i in racing]
        if all(values[i] is not None for i in racing):
            rows = [[*row, sign * (values[i] or 0.0)] for i, row in zip(racing, rows, strict=True)]
        means = [math.fsum(row) / len(row) if row else math.inf for row in rows]
        best = min(range(len(racing)), key=lambda k: (means[k], sign * (values[racing[k]] or 0.0)))
        margin = 2 * math.sqrt(2 * find_noise(rows) / max(len(rows[0]), 1))
        close = [i for i, mean in zip(racing, means, strict=True) if mean - means[best] <= margin]
        if len(close) < 2 or count == len(seeds) or (effect is not None and margin < effect / 2):
            return needed, racing[best]
        racing = close
        for i in racing:
            needed[i] = count + 1
    raise ValueError(f"{least} seeds are needed, and there are {len(seeds)}")


def find_noise(rows: Sequence[Sequence[float]]) -> float:
    """Return the variance of a run's own noise, from settings (rows) on the same seeds (columns), without the effects
    of both; 0 for fewer than two of either."""
    if len(rows) < 2 or len(rows[0]) < 2:
        return 0.0
    means = [math.fsum(row) / len(row) for row in rows]
    middles = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    grand = math.fsum(means) / len(means)
    rest = [
        (value - mean - middle + grand) ** 2
        for row, mean in zip(rows, means, strict=True)
        for value, middle in zip(row, middles, strict=True)
    ]
    return math.fsum(rest) / ((len(middles) - 1) * (len(means) - 1))


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
