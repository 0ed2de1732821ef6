"""Pruners, which stop a trial early. Each arm has a study of its own, so trials of other arms are never considered."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ablate.config.base import Kind
from ablate.config.bounds import MOST_STEPS, MOST_TRIALS
from ablate.config.registry import Registry

if TYPE_CHECKING:
    from optuna.pruners import BasePruner


class PrunerConfig(Kind):
    """A rule for stopping a trial that is worse than the other trials of its arm. Trials of other arms are never
    considered."""

    stops_trials: ClassVar[bool] = True
    """Whether it ever stops one."""

    first_step: int | None = Field(None, gt=0, le=MOST_STEPS)
    """The first update at which a trial may be pruned. None: a third of `trainer.max_steps`, after the warm-up; earlier
    updates are not accepted, since early comparisons favour high learning rates."""

    @staticmethod
    def find_earliest_step(max_steps: int, warmup: int) -> int:
        """Return the first update at which a trial may be compared."""
        return max(math.ceil(max_steps / 3), warmup + 1)

    def find_first_step(self, max_steps: int, warmup: int) -> int:
        """Return `first_step`, resolved for a run of `max_steps`."""
        return self.first_step or self.find_earliest_step(max_steps, warmup)

    def build(self, max_steps: int, warmup: int) -> BasePruner:
        """Return Optuna's pruner for runs of `max_steps` updates."""
        raise NotImplementedError


pruners: Registry[PrunerConfig] = Registry("pruner", PrunerConfig, default="none")


@pruners.register
class NoPruner(PrunerConfig):
    """Every trial runs to its end."""

    kind: Literal["none"] = "none"
    stops_trials: ClassVar[bool] = False

    def build(self, max_steps: int, warmup: int) -> BasePruner:
        from optuna.pruners import NopPruner

        return NopPruner()


@pruners.register
class Median(PrunerConfig):
    """Stops a trial whose best value so far is worse than the median of its arm's earlier trials at that update."""

    kind: Literal["median"] = "median"
    n_startup_trials: int = Field(4, ge=0, le=MOST_TRIALS)
    """Trials of the arm that run to their end before any is pruned."""

    def build(self, max_steps: int, warmup: int) -> BasePruner:
        from optuna.pruners import MedianPruner

        return MedianPruner(self.n_startup_trials, self.find_first_step(max_steps, warmup))
