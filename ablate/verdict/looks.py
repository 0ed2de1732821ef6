"""Looks at a comparison as seeds are added, and the level of each: alpha spending (Lan & DeMets 1983, Biometrika 70,
659-663), with exact levels for t-tests (`ablate.verdict.sequential`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from ablate.verdict.sequential import find_levels, find_sign_levels

PLANNED_SHARE = 0.8
"""Share of the error that is spent by the planned number of seeds; the rest is for seeds that are added later."""


@dataclass(frozen=True)
class Looks:
    """The looks at a comparison, and the plan. Seeds may be added without limit: a look beyond the plan spends half of
    the remaining error."""

    sizes: tuple[int, ...]
    """Seeds at each look so far, ascending."""
    planned: int
    """Seeds at the last planned look, as planned at the first look."""
    before: tuple[int, ...] = ()
    """Seeds at earlier looks, in their order, that do not lead to these by further seeds alone: values have changed.
    The law of a test from them to these looks is not known, so these have a share of their own: a bound of the union.
    """

    def __post_init__(self) -> None:
        if not self.sizes or self.sizes[0] < 1 or any(b <= a for a, b in pairwise(self.sizes)):
            raise ValueError(f"looks at {self.sizes} seeds: the numbers must ascend from 1 or more")
        if min(self.planned, *self.before, 1) < 1:
            raise ValueError(f"{self.planned} seeds were planned, {self.before} looked at before: must be 1 or more")

    @property
    def taken(self) -> tuple[int, ...]:
        """Seeds at all looks, in their order."""
        return *self.before, *self.sizes

    def add(self, size: int) -> Looks:
        """Return these looks with one more at `size` seeds; unchanged if there are no more seeds than at the last
        look."""
        return self if size <= self.sizes[-1] else replace(self, sizes=(*self.sizes, size))

    def share_spent(self) -> tuple[float, ...]:
        """Return the share of the error that is spent up to each look, after that of the looks before: Lan and DeMets'
        Pocock-type spending function, times 0.8, up to the plan, and of the other 0.2 half of the rest at each look
        beyond it or without more seeds than before."""
        before, *shares = (0.0, *_share_spent(self.taken, self.planned))[len(self.before) :]
        return tuple(share - before for share in shares)


@lru_cache(maxsize=4096)
def _share_spent(sizes: tuple[int, ...], planned: int) -> tuple[float, ...]:
    shares, beyond, most = [], 0, 0
    for size in sizes:
        beyond += size > planned or size <= most
        most = max(most, size)
        within = PLANNED_SHARE * math.log1p((math.e - 1) * min(most / planned, 1))
        shares.append(within + (1 - PLANNED_SHARE) * (1 - 0.5**beyond))
    return tuple(shares)


def plan_looks(first: int, last: int) -> Looks:
    """Return a look after each seed from `first` to `last`; one look if they are equal."""
    return Looks(tuple(range(first, last + 1)), last)


def nominal_levels(looks: Looks, alpha: float, pairs: Sequence[int] | None = None) -> tuple[float, ...]:
    """Return the level of the t-test at each look, for an error of at most `alpha` over all looks, however many follow.

    Args:
        looks: the looks.
        alpha: the level of the comparison: 5 % over the number of comparisons.
        pairs: the number of seeds at each look on which both arms trained; None: all. Given which seeds these are, the
            levels are exact for normal differences; a look with fewer than three has the level 0.
    """
    return find_levels(looks.sizes if pairs is None else pairs, [alpha * share for share in looks.share_spent()])


def find_last_level(looks: Looks, alpha: float, counted: Sequence[bool]) -> float:
    """Return the level of the t-test at the last look, where `counted` says for each seed in order whether it is in the
    mean: the others failed, or were not measured. 0 for fewer than three counted seeds."""
    return nominal_levels(looks, alpha, [sum(counted[:size]) for size in looks.sizes])[-1]


def find_lowest_level(looks: Iterable[Looks], alpha: float) -> float:
    """Return the lowest level at the last of any of the `looks`, for an error of `alpha` over all of them; 0 where no
    round of seeds is complete."""
    return min((nominal_levels(own, alpha)[-1] for own in dict.fromkeys(looks)), default=0.0)


def sign_levels(looks: Looks, alpha: float, discordant: Sequence[int]) -> tuple[float, ...]:
    """Return the level of the sign test at each look, given the number of seeds so far on which exactly one of the arms
    failed. The p-value is compared with `<=`."""
    return find_sign_levels(discordant, [alpha * share for share in looks.share_spent()])
