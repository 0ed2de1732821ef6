"""Pruners, which stop a trial early: Optuna's, under short names and by Optuna's names."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field

from ablate.config.base import Kind
from ablate.config.bounds import MOST_STEPS, MOST_TRIALS
from ablate.config.errors import Problem
from ablate.config.registry import Registry
from ablate.sweeps.search.optuna_classes import PACKAGES, instantiate
from ablate.sweeps.search.optuna_kind import NamedKind, OptunaKind

if TYPE_CHECKING:
    from optuna.pruners import BasePruner


class PrunerConfig(Kind):
    """A rule for stopping a trial that is worse than the other trials of its arm. Trials of other arms are never
    considered."""

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

    @property
    def stops_trials(self) -> bool:
        """Whether it ever stops one."""
        return True

    def validate_arguments(self) -> list[Problem]:
        """Return what is wrong with it, whatever it prunes."""
        return []

    def describe(self) -> str:
        """Return what a plan says of it."""
        return self.kind


pruners: Registry[PrunerConfig] = Registry("pruner", PrunerConfig, default="none")

_SET_BY_SWEEP = ("min_resource", "max_resource", "n_warmup_steps", "min_early_stopping_rate", "bootstrap_count")
"""Arguments of Optuna's classes that follow from `first_step` and the length of a run."""


def build_pruner(name: str, arguments: Mapping[str, Any], first: int, last: int) -> BasePruner:
    """Return the pruner `name` of Optuna for runs of `last` updates, which may be pruned from the update `first` on."""
    package = PACKAGES["pruners"]
    steps = {"min_resource": first, "max_resource": last, "n_warmup_steps": first}
    taken = inspect.signature(package.find(name)).parameters
    own = {key: value for key, value in steps.items() if key in taken}
    pruner: BasePruner = instantiate(package.find_adapted(name), **arguments, **own)
    return pruner


class OptunaPruner(OptunaKind, PrunerConfig):
    """A pruner of Optuna under a short name, with this platform's defaults."""

    package = "pruners"
    set_by_sweep = _SET_BY_SWEEP
    not_arguments = ("kind", "options", "first_step")

    def build(self, max_steps: int, warmup: int) -> BasePruner:
        return build_pruner(
            self.optuna_class, self.list_arguments(), self.find_first_step(max_steps, warmup), max_steps
        )


@pruners.register
class NoPruner(OptunaPruner):
    """Every trial runs to its end."""

    kind: Literal["none"] = "none"
    optuna_class = "NopPruner"

    @property
    def stops_trials(self) -> bool:
        return False


@pruners.register
class Hyperband(OptunaPruner):
    """Successive halving in several brackets, which differ in how early they begin (Li et al. 2018, arXiv
    1603.06560)."""

    kind: Literal["hyperband"] = "hyperband"
    optuna_class = "HyperbandPruner"
    reduction_factor: int = Field(3, ge=2, le=MOST_TRIALS)
    """One of this many trials continues from each rung."""


@pruners.register
class SuccessiveHalving(OptunaPruner):
    """Asynchronous successive halving (Li et al. 2020, arXiv 1810.05934)."""

    kind: Literal["successive_halving"] = "successive_halving"
    optuna_class = "SuccessiveHalvingPruner"
    reduction_factor: int = Field(3, ge=2, le=MOST_TRIALS)
    """One of this many trials continues from each rung."""


class AgainstEarlier(OptunaPruner):
    """Compares a trial with the earlier ones of its arm at the same update."""

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


@pruners.register
class NamedPruner(NamedKind, PrunerConfig):
    """A pruner of Optuna by its name, such as HyperbandPruner; further keys are its arguments. One that does not
    compare a trial with others of its arm is refused."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["optuna"] = "optuna"
    name: str
    """Its name in Optuna: `ablate list library-pruners`."""
    package = "pruners"
    set_by_sweep = _SET_BY_SWEEP

    def build(self, max_steps: int, warmup: int) -> BasePruner:
        return build_pruner(self.name, self.list_arguments(), self.find_first_step(max_steps, warmup), max_steps)

    @property
    def stops_trials(self) -> bool:
        return self.name != "NopPruner"

    def build_example(self) -> BasePruner:
        return self.build(100, 10)

    def describe(self) -> str:
        return f"{self.name} of Optuna"
