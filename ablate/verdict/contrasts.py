"""Contrasts of the cells of a factorial design: main effects, and interactions of two components."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """A level of a component, against its reference."""

    component: str
    """As it is told."""
    level: str
    reference: str
    path: str
    """The component as the file names it."""

    def __str__(self) -> str:
        return f"{self.component}={self.level}"


@dataclass(frozen=True)
class Contrast:
    """A weighted sum over the cells of a design, which is 0 if there is no effect. The file fixes it before it runs.

    Of one level it is the main effect: the difference of the cell at the level to the cell at the reference, as a mean
    over the combinations of the other components. With `where` it is the same among the cells that have one level of
    another component (a simple effect). Of two levels it is their interaction: the difference of two such effects of
    the first, with the second at its level and at its reference, as a mean over the combinations of the others.
    """

    levels: tuple[Level, ...]
    """One, or two of different components."""
    weights: Mapping[str, float]
    """Cell -> weight; they sum to 0."""
    partners: tuple[Mapping[str, str], ...]
    """For each of its components: cell -> the one that differs from it in that component alone. It has the opposite
    weight."""
    where: str = ""
    """The level of another component that its cells have, 'norm=mix'; "": they have all levels."""

    @property
    def name(self) -> str:
        """'norm=lns', or 'norm=lns x qk_norm=true', or 'warmup=0.01 at norm=mix'."""
        return " x ".join(map(str, self.levels)) + (f" at {self.where}" if self.where else "")

    @property
    def is_main(self) -> bool:
        """Whether it is the effect of one level, and no interaction."""
        return len(self.levels) == 1

    @property
    def sd_share(self) -> float:
        """Its standard deviation, over seeds, in those of a difference of two cells, where the cells of a seed vary
        independently of each other but for what the seed does to all alike."""
        return math.sqrt(sum(weight**2 for weight in self.weights.values()) / 2)

    def list_pairs(self) -> set[tuple[str, str]]:
        """Return all cells with each of their partners."""
        return {pair for partners in self.partners for pair in partners.items()}

    def describe(self) -> str:
        """Return 'norm=lns against norm=pre', 'warmup=0.01 against warmup=0.1 at norm=mix'; of an interaction the
        name."""
        if not self.is_main:
            return self.name
        level = self.levels[0]
        where = f" at {self.where}" if self.where else ""
        return f"{level} against {level.component}={level.reference}{where}"
