"""The samplers of a sweep, which choose its next points: Optuna's, by Optuna's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from ablate.config.bounds import MOST_SEED, MOST_TRIALS
from ablate.config.errors import Problem
from ablate.config.registry import Registry
from ablate.sweeps.search.optuna_kind import OptunaKind
from ablate.sweeps.search.space import Range, Space, list_cells

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class SamplerConfig(OptunaKind):
    """A rule for choosing the next trial of an arm. The same seed gives every arm the same first points."""

    package = "samplers"
    set_by_sweep = ("seed", "constraints_func", "independent_sampler", "source_trials")
    not_arguments = ("kind", "options", "seed")

    seed: int = Field(0, ge=0, le=MOST_SEED)
    """Seed of the proposals, which also depend on the number of the trial and the finished trials."""

    def derive_seed(self, number: int) -> int:
        """Return a random seed for the trial `number`."""
        return int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])

    def build(self, number: int) -> BaseSampler:
        """Return Optuna's sampler for the trial `number` of an arm. Seeding by number makes a continued sweep propose
        the same points as an uninterrupted one."""
        sampler: BaseSampler = self.instantiate(seed=self.derive_seed(number))
        return sampler

    def validate(self, space: Space) -> list[Problem]:  # type: ignore[override]
        """Return the reason that this sampler cannot search `space`."""
        return []


samplers: Registry[SamplerConfig] = Registry("sampler", SamplerConfig, default="tpe")


@samplers.register
class Tpe(SamplerConfig):
    """Tree-structured Parzen estimator, multivariate, taking running trials into account."""

    kind: Literal["tpe"] = "tpe"
    optuna_class = "TPESampler"
    n_startup_trials: int = Field(5, ge=0, le=MOST_TRIALS)
    """Number of random trials before the model is used."""


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

    def validate(self, space: Space) -> list[Problem]:  # type: ignore[override]
        problems = []
        for path, entry in space.items():
            try:
                list_cells({path: entry})
            except ValueError as error:
                problems.append(Problem("search", f"{path}: {error}"))
        if not problems:
            try:
                list_cells(space)
            except ValueError as error:
                problems.append(Problem("search", str(error)))
        return problems


@samplers.register
class CmaEs(SamplerConfig):
    """Covariance matrix adaptation, for two or more numbers."""

    kind: Literal["cmaes"] = "cmaes"
    optuna_class = "CmaEsSampler"
    n_startup_trials: int = Field(5, ge=1, le=MOST_TRIALS)
    """Number of random trials before the first generation."""

    def validate(self, space: Space) -> list[Problem]:  # type: ignore[override]
        numbers = [path for path, entry in space.items() if isinstance(entry, Range)]
        if len(numbers) == len(space) >= 2:
            return []
        text = f"cmaes searches two or more ranges, given {', '.join(space)}. Use tpe, or search another number"
        return [Problem("search", text)]
