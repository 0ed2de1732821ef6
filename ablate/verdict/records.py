"""The records of the arms on fresh seeds, and of their comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ablate.verdict.failures import FailureShare
from ablate.verdict.intervals import Estimate
from ablate.verdict.looks import Looks
from ablate.verdict.outcomes import Outcome

Kind = Literal[
    "baseline",
    "cell",
    "better",
    "worse",
    "equivalent",
    "undecided",
    "mixed",
    "fails more often",
    "fails less often",
    "fails on all seeds",
    "baseline fails on all seeds",
    "baseline could not be trained",
    "could not be trained",
    "figures",
]
UNCOMPARED: tuple[Kind, ...] = ("baseline", "cell")
"""Kinds of arms that are compared with none: a baseline, and the cells of a factorial, whose contrasts are compared."""
DECIDED = frozenset(
    (
        "better",
        "worse",
        "equivalent",
        "fails on all seeds",
        "baseline fails on all seeds",
        "could not be trained",
        "baseline could not be trained",
    )
)
"""Kinds of verdict for which no further seeds are run."""


@dataclass(frozen=True)
class Crossed:
    """The loser of a comparison, trained at the winner's values of the searched parameters that both have."""

    loser: str
    """The arm's name or the baseline's."""
    outcomes: Mapping[int, Outcome]
    """Outcomes of the loser at the winner's settings: seed -> outcome, in the order of the seeds."""
    params: dict[str, Any] = field(default_factory=dict)
    """Its settings."""


@dataclass(frozen=True)
class FreshOutcomes:
    """The chosen settings of an arm, on fresh seeds."""

    outcomes: Mapping[int, Outcome]
    """Seed -> outcome, in the order of the seeds; seeds that have not ended are left out."""
    params: dict[str, Any] = field(default_factory=dict)
    """The settings."""
    looks: Looks | None = None
    """The rounds that are complete; None: no round is."""
    crossed: Crossed | None = None
    """Set if the arm and the baseline have different settings; never for the baseline."""
    found: bool = True
    """Whether a trial of its search completed."""


@dataclass(frozen=True)
class Versus:
    """The comparison of an arm with another, on the seeds that both have."""

    seeds: int
    failed: int
    """Of the arm."""
    other_failed: int
    failure_p: float | None
    """The p-value of the exact sign test; None if no seed distinguishes the two."""
    failure_level: float
    """The largest p-value that shows that one fails more often; 0: no outcome would."""
    difference: Estimate | None
    """The arm minus the other, over the seeds on which both trained, with the interval at `level`."""
    left_out: int
    """Number of seeds that are not in the difference, because one or both failed."""
    level: float
    """Level of the interval of the difference; 0: there is none."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the difference."""
        return self.difference.interval if self.difference else None

    @property
    def side(self) -> int:
        """-1: the difference is shown to be below 0; 1: above; 0: neither."""
        ends = self.interval
        return 0 if ends is None else (ends[0] > 0) - (ends[1] < 0)

    @property
    def failure_side(self) -> int:
        """1: the arm is shown to fail more often than the other; -1: less often; 0: neither."""
        if self.failure_p is None or self.failure_p > self.failure_level:
            return 0
        return 1 if self.failed > self.other_failed else -1

    def lies_within(self, effect: float | None) -> bool:
        """Whether the whole interval lies within +-`effect`."""
        ends = self.interval
        return effect is not None and ends is not None and -effect < ends[0] and ends[1] < effect


@dataclass(frozen=True)
class Compared:
    """The comparison of an arm with its baseline."""

    kind: Kind
    outcomes: Mapping[int, Outcome]
    """Seed -> outcome, of all seeds that ended."""
    params: dict[str, Any]
    """The settings."""
    planned: int
    """Planned number of seeds."""
    failures: FailureShare | None
    """Of the seeds up to the last look; None without a seed."""
    estimate: Estimate | None
    """Of the objective, over the seeds up to the last look on which it trained; 95 % over all looks."""
    looks: Looks | None
    """The rounds that are complete; None: no round is."""
    family: int
    """Comparisons that share 5 %."""
    effect: float | None
    """The smallest difference that matters; None: not given."""
    versus: Versus | None = None
    """Comparison with the baseline; None for the baseline itself."""
    crossed: Versus | None = None
    """The same comparison with the loser at the winner's settings; None if it was not run."""
    crossed_loser: str | None = None
    """Name of the loser in `crossed`."""
    needs_crossed: str | None = None
    """The arm that must be trained at the other's settings before anything is claimed; None: neither."""
    agrees: bool | None = None
    """Whether the crossed comparison agrees; None if none is needed."""

    @property
    def decided(self) -> bool:
        """Whether the verdict is final, so that no further seeds are run for it."""
        return self.kind in DECIDED

    @property
    def difference(self) -> Estimate | None:
        """The arm minus the baseline, over the seeds on which both trained."""
        return self.versus.difference if self.versus else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        plain = asdict(self)
        plain["outcomes"] = {str(seed): asdict(outcome) for seed, outcome in self.outcomes.items()}
        plain["decided"] = self.decided
        for key in ("versus", "crossed"):
            versus: Versus | None = getattr(self, key)
            if versus is not None:
                plain[key]["interval"] = versus.interval
        return plain
