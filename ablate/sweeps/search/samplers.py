"""Where a sweep searches next: Optuna's samplers, by the names that Optuna gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from ablate.config.registry import Registry
from ablate.sweeps.search.optuna_kind import Method
from ablate.sweeps.spec.search_space import Range, Space, cells

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


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
