"""How a sweep searches: Optuna's samplers and pruners, by the names that Optuna gives them."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from ablate.config.base import Kind
from ablate.config.errors import did_you_mean
from ablate.config.registry import Registry
from ablate.sweeps.spec.search_space import Range, Space, cells

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler


class Method(Kind):
    """A class of Optuna's with its arguments: those that are fields here, and further ones as `options`."""

    package: ClassVar[str]
    """Where in optuna the class is: samplers or pruners."""
    optuna_class: ClassVar[str]
    """Its name."""
    ours: ClassVar[tuple[str, ...]] = ()
    """Arguments that are not options, because the sweep sets them."""
    aside: ClassVar[tuple[str, ...]] = ("kind", "options")
    """The fields that are no arguments of Optuna's class under their own names; all others are."""

    kind: str
    options: dict[str, Any] = {}
    """Further arguments of Optuna's class, under its names."""

    @field_validator("options")
    @classmethod
    def _are_arguments(cls, options: dict[str, Any]) -> dict[str, Any]:
        if not options:
            return options  # without importing Optuna
        known = [name for name in inspect.signature(cls._class()).parameters if name not in cls.ours]
        fields = [name for name in known if name in cls.model_fields]
        for name in options:
            if name in fields:
                raise ValueError(f"{name} stands beside options, not in them")
            if name not in known:
                rest = [other for other in known if other not in fields]
                hint = did_you_mean(name, rest)
                raise ValueError(f"{cls.optuna_class} takes no {name}. Accepted: {', '.join(rest) or 'nothing'}.{hint}")
        return options

    @classmethod
    def _class(cls) -> Any:
        from importlib import import_module

        return getattr(import_module(f"optuna.{cls.package}"), cls.optuna_class)

    def made(self, **arguments: Any) -> Any:
        """An instance of Optuna's class, from the fields, the options and `arguments`."""
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in self.aside}
        return self._class()(**fields, **self.options, **arguments)


# ---------------------------------------------------------------------------------------------------- samplers


class SamplerConfig(Method):
    """Where the next trial of an arm is taken from. The same seed gives every arm the same first points."""

    package = "samplers"
    ours = ("seed", "constraints_func", "independent_sampler", "source_trials")
    aside = ("kind", "options", "seed")

    seed: int = Field(0, ge=0)
    """What the proposals depend on, with the number of the trial and the finished trials."""

    def stream(self, number: int) -> int:
        """A random seed for the trial `number`."""
        return int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])

    def build(self, number: int) -> BaseSampler:
        """Optuna's sampler for the trial `number` of an arm. Seeding by number makes a continued sweep propose what an
        uninterrupted one would have."""
        sampler: BaseSampler = self.made(seed=self.stream(number))
        return sampler

    def problems(self, space: Space) -> list[str]:
        """Why this sampler cannot search `space`."""
        return []


samplers: Registry[SamplerConfig] = Registry("sampler", SamplerConfig, default="tpe")


@samplers.register
class Tpe(SamplerConfig):
    """Tree-structured Parzen estimator, multivariate, aware of the trials that are running."""

    kind: Literal["tpe"] = "tpe"
    optuna_class = "TPESampler"
    n_startup_trials: int = Field(5, ge=0)
    """Trials at random before the model is used."""


@samplers.register
class Random(SamplerConfig):
    """Independent random points."""

    kind: Literal["random"] = "random"
    optuna_class = "RandomSampler"


@samplers.register
class Grid(SamplerConfig):
    """Every combination once, in order. Each entry of the search is a list, or a range with `num` or `step`."""

    kind: Literal["grid"] = "grid"
    optuna_class = "RandomSampler"  # never drawn from: the cells are enqueued

    def problems(self, space: Space) -> list[str]:
        found = []
        for path, entry in space.items():
            try:
                cells({path: entry})
            except ValueError as error:
                found.append(f"{path}: {error}")
        return found


@samplers.register
class CmaEs(SamplerConfig):
    """Covariance matrix adaptation, for two or more numbers."""

    kind: Literal["cmaes"] = "cmaes"
    optuna_class = "CmaEsSampler"
    n_startup_trials: int = Field(5, ge=1)
    """Trials at random before the first generation."""

    def problems(self, space: Space) -> list[str]:
        numbers = [path for path, entry in space.items() if isinstance(entry, Range)]
        if len(numbers) == len(space) >= 2:
            return []
        return [f"cmaes searches two or more ranges, given {', '.join(space)}. Take tpe, or search another number"]


# ---------------------------------------------------------------------------------------------------- pruners


class PrunerConfig(Method):
    """When a trial that does worse than its arm's others is stopped. Trials of other arms are never looked at."""

    package = "pruners"
    ours = ("min_resource", "max_resource", "n_warmup_steps", "min_early_stopping_rate", "bootstrap_count")
    aside = ("kind", "options", "first_step")
    first_argument: ClassVar[str]
    """The argument of Optuna's class that takes the first update at which a trial may be pruned."""

    first_step: int | None = Field(None, gt=0)
    """The first update at which a trial may be pruned. None: a third of `trainer.max_steps`, after the warm-up; no
    earlier one is accepted, as earlier comparisons favour high learning rates."""

    @staticmethod
    def earliest(max_steps: int, warmup: int) -> int:
        """The first update at which a trial may be judged."""
        return max(math.ceil(max_steps / 3), warmup + 1)

    def first(self, max_steps: int, warmup: int) -> int:
        """`first_step`, resolved for a run of `max_steps`."""
        return self.first_step or self.earliest(max_steps, warmup)

    def build(self, max_steps: int, warmup: int) -> BasePruner:
        """Optuna's pruner for runs of `max_steps` updates."""
        pruner: BasePruner = self.made(**{self.first_argument: self.first(max_steps, warmup)})
        return pruner


pruners: Registry[PrunerConfig] = Registry("pruner", PrunerConfig, default="none")


@pruners.register
class NoPruner(PrunerConfig):
    """Every trial runs to its end."""

    kind: Literal["none"] = "none"
    optuna_class = "NopPruner"

    def build(self, max_steps: int, warmup: int) -> BasePruner:
        pruner: BasePruner = self.made()
        return pruner


@pruners.register
class Hyperband(PrunerConfig):
    """Successive halving in several brackets, which differ in how early they begin (Li et al. 2018, arXiv
    1603.06560)."""

    kind: Literal["hyperband"] = "hyperband"
    optuna_class = "HyperbandPruner"
    reduction_factor: int = Field(3, ge=2)
    """One of this many trials goes on from each rung."""

    def build(self, max_steps: int, warmup: int) -> BasePruner:
        pruner: BasePruner = self.made(min_resource=self.first(max_steps, warmup), max_resource=max_steps)
        return pruner

    @classmethod
    def _class(cls) -> Any:
        from ablate.sweeps.search.fair_pruners import Hyperband

        return Hyperband


@pruners.register
class SuccessiveHalving(PrunerConfig):
    """Asynchronous successive halving (Li et al. 2020, arXiv 1810.05934)."""

    kind: Literal["successive_halving"] = "successive_halving"
    optuna_class = "SuccessiveHalvingPruner"
    first_argument = "min_resource"
    reduction_factor: int = Field(3, ge=2)
    """One of this many trials goes on from each rung."""


class AgainstEarlier(PrunerConfig):
    """Compares a trial with the earlier ones of its arm at the same update."""

    first_argument = "n_warmup_steps"
    n_startup_trials: int = Field(4, ge=0)
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
    """Percent of the trials that go on; 50 is the median."""
