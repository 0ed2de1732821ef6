"""Pruners, which stop a trial early. Each arm has a study of its own, so trials of other arms are never considered."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from ablate.config.base import Kind
from ablate.config.registry import Registry


class PrunerConfig(Kind):
    """A rule for stopping a trial that is worse than the other trials of its arm. Trials of other arms are never
    considered."""

    stops_trials: ClassVar[bool] = True
    """Whether it ever stops one."""

    @staticmethod
    def find_first_step(max_steps: int, warmup: int) -> int:
        """Return the first update at which a trial may be pruned: a third of the run, after the warm-up. Earlier
        comparisons favour high learning rates."""
        return max(math.ceil(max_steps / 3), warmup + 1)


pruners: Registry[PrunerConfig] = Registry("pruner", PrunerConfig, default="none")


@pruners.register
class NoPruner(PrunerConfig):
    """Every trial runs to its end."""

    kind: Literal["none"] = "none"
    stops_trials: ClassVar[bool] = False


@pruners.register
class Median(PrunerConfig):
    """Stops a trial whose best value so far is worse than the median of its arm's earlier trials at that update, from a
    third of the run on, after the warm-up and the first four trials."""

    kind: Literal["median"] = "median"
