"""Two arms on the same seeds: their failures, the differences of seeds that trained, and both at each look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ablate.verdict.failures import compare_failures
from ablate.verdict.intervals import Estimate, bound_mean, least_sd_of_difference
from ablate.verdict.looks import Looks, nominal_levels, sign_levels
from ablate.verdict.outcomes import Outcome
from ablate.verdict.sequential import LEAST


@dataclass(frozen=True)
class Pairing:
    """An arm and another on the seeds that both have, up to the last look, or all if there was none."""

    looks: Looks | None
    """None: no round is complete."""
    seeds: int
    """Seeds on which both have an outcome."""
    failed: int
    """Of the arm."""
    other_failed: int
    alone: tuple[int, int]
    """Seeds on which only the arm failed, and only the other."""
    differences: tuple[float, ...]
    """The arm minus the other, on the seeds on which both trained."""
    scale: float
    """The largest magnitude among the subtracted values."""
    pairs_at: tuple[int, ...]
    """At each look, seeds on which both had trained."""
    discordant_at: tuple[int, ...]
    """At each look, seeds on which exactly one had failed."""

    @property
    def pairs(self) -> int:
        """Seeds on which both trained."""
        return len(self.differences)

    @property
    def left_out(self) -> int:
        """Seeds that are not in the mean difference, because one or both failed."""
        return self.seeds - self.pairs

    @property
    def ready(self) -> bool:
        """Whether there may be a verdict: a look was made, at three seeds or more."""
        return self.looks is not None and self.seeds >= LEAST

    @cached_property
    def failure_p(self) -> float | None:
        """The p-value of the exact sign test; None if no seed distinguishes the two."""
        return compare_failures(*self.alone) if any(self.alone) else None

    def find_level(self, alpha: float) -> float:
        """Return the level of the mean difference at the last look, for an error of `alpha` over all looks."""
        return nominal_levels(self.looks, alpha, self.pairs_at)[-1] if self.looks and self.ready else 0.0

    def find_failure_level(self, alpha: float) -> float:
        """Return the level of the sign test at the last look, for an error of `alpha` over all looks."""
        return sign_levels(self.looks, alpha, self.discordant_at)[-1] if self.looks and any(self.alone) else 0.0

    def estimate(self, level: float, resolution: float = 0.0) -> Estimate | None:
        """Return the mean difference with its interval at `level`; None if there is no seed on which both trained. No
        interval for fewer than three pairs."""
        if not self.differences:
            return None
        level = level if self.pairs >= LEAST else 0.0
        return bound_mean(self.differences, level, least_sd_of_difference(resolution), self.scale)


def pair_outcomes(arm: Mapping[int, Outcome], other: Mapping[int, Outcome], looks: Looks | None) -> Pairing:
    """Return `arm` and `other` (seed -> outcome, in the order of the seeds) on the seeds that both have. Seeds after
    the last look are included at the next look."""
    differences: list[float] = []
    scale, seeds, failed, other_failed, alone, other_alone = 0.0, 0, 0, 0, 0, 0
    sizes = looks.sizes if looks else ()
    pairs_at: list[int] = []
    discordant_at: list[int] = []
    for seed, theirs in other.items():
        ours = arm.get(seed)
        if ours is None:
            continue
        seeds += 1
        if ours.trained and theirs.trained:
            a, b = ours.value or 0.0, theirs.value or 0.0
            differences.append(a - b)
            scale = max(scale, abs(a), abs(b))
        else:
            failed += not ours.trained
            other_failed += not theirs.trained
            alone += theirs.trained
            other_alone += ours.trained
        if len(pairs_at) < len(sizes) and seeds == sizes[len(pairs_at)]:
            pairs_at.append(len(differences))
            discordant_at.append(alone + other_alone)
            if len(pairs_at) == len(sizes):
                break
    short = len(sizes) - len(pairs_at)  # looks at more seeds than there are now
    return Pairing(
        looks,
        seeds,
        failed,
        other_failed,
        (alone, other_alone),
        tuple(differences),
        scale,
        (*pairs_at, *[len(differences)] * short),
        (*discordant_at, *[alone + other_alone] * short),
    )
