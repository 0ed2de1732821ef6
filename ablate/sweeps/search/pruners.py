"""Pruners, which stop a trial early: Optuna's, by Optuna's names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ablate.config.bounds import MOST_STEPS, MOST_TRIALS
from ablate.config.registry import Registry
from ablate.sweeps.search.optuna_kind import OptunaKind

if TYPE_CHECKING:
    from optuna.pruners import BasePruner


class PrunerConfig(OptunaKind):
    """A rule for stopping a trial that is worse than the other trials of its arm. Trials of other arms are never
    considered."""

    package = "pruners"
    set_by_sweep = ("min_resource", "max_resource", "n_warmup_steps", "min_early_stopping_rate", "bootstrap_count")
    not_arguments = ("kind", "options", "first_step")
    first_argument: ClassVar[str]
    """The argument of Optuna's class that takes the first update at which a trial may be pruned."""

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
        pruner: BasePruner = self.instantiate(**{self.first_argument: self.find_first_step(max_steps, warmup)})
        return pruner


pruners: Registry[PrunerConfig] = Registry("pruner", PrunerConfig, default="none")


@pruners.register
class NoPruner(PrunerConfig):
    """Every trial runs to its end."""

    kind: Literal["none"] = "none"
    optuna_class = "NopPruner"

    def build(self, max_steps: int, warmup: int) -> BasePruner:
        pruner: BasePruner = self.instantiate()
        return pruner


@pruners.register
class Hyperband(PrunerConfig):
    """Successive halving in several brackets, which differ in how early they begin (Li et al. 2018, arXiv
    1603.06560)."""

    kind: Literal["hyperband"] = "hyperband"
    optuna_class = "HyperbandPruner"
    reduction_factor: int = Field(3, ge=2, le=MOST_TRIALS)
    """One of this many trials continues from each rung."""

    def build(self, max_steps: int, warmup: int) -> BasePruner:
        first = self.find_first_step(max_steps, warmup)
        pruner: BasePruner = self.instantiate(min_resource=first, max_resource=max_steps)
        return pruner

    @classmethod
    def _find_class(cls) -> Any:
        from ablate.sweeps.search.fair_pruners import FairHyperband

        return FairHyperband


@pruners.register
class SuccessiveHalving(PrunerConfig):
    """Asynchronous successive halving (Li et al. 2020, arXiv 1810.05934)."""

    kind: Literal["successive_halving"] = "successive_halving"
    optuna_class = "SuccessiveHalvingPruner"
    first_argument = "min_resource"
    reduction_factor: int = Field(3, ge=2, le=MOST_TRIALS)
    """One of this many trials continues from each rung."""


class AgainstEarlier(PrunerConfig):
    """Compares a trial with the earlier ones of its arm at the same update."""

    first_argument = "n_warmup_steps"
    n_startup_trials: int = Field(4, ge=0, le=MOST_TRIALS)
    """Trials of the arm that run to their end before any is pruned."""


@pruners.register
class Median(AgainstEarlier):
    """Stops a trial whose best value so far is worse than the median of its arm's earlier trials at that update."""

    kind: Literal["median"] = "median"
    optuna_class = "MedianPruner"


@pruners.register
class Percentile(AgainstEarlier):
    """Stops a trial whose best value so far is not among the best `percentile` percent of its arm's earlier trials at
    that update."""

    kind: Literal["percentile"] = "percentile"
    optuna_class = "PercentilePruner"
    percentile: float = Field(50.0, gt=0, lt=100)
    """Percent of the trials that continue; 50 is the median."""
