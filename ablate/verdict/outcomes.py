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


def state_rule(trivial_loss: float | None) -> str:
    """Return the sentence that defines a failure."""
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
