"""The samplers of a sweep, which choose its next points: Optuna's, with this platform's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ablate.config.base import Kind
from ablate.config.bounds import MOST_SEED, MOST_TRIALS
from ablate.config.errors import Problem
from ablate.config.registry import Registry
from ablate.sweeps.search.space import Space, list_cells


class SamplerConfig(Kind):
    """A rule for choosing the next trial of an arm. The same seed gives every arm the same first points."""

    learns: ClassVar[bool] = True
    """Whether its proposals depend on trials that have ended."""
    learns_from_pruned: ClassVar[bool] = True
    """Whether it learns from trials that a pruner has stopped, where it learns at all."""

    seed: int = Field(0, ge=0, le=MOST_SEED)
    """Seed of the proposals, which also depend on the number of the trial and the finished trials."""

    def derive_seed(self, number: int) -> int:
        """Return a random seed for the trial `number`."""
        return int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])

    def validate(self, space: Space) -> list[Problem]:  # type: ignore[override]
        """Return the reason that this sampler cannot search `space`."""
        return []


samplers: Registry[SamplerConfig] = Registry("sampler", SamplerConfig, default="gp")


def choose_plain_sampler(space: Mapping[str, Any]) -> str:
    """Return the sampler for the entries of a file that does not learn from trials: the grid where each entry says its
    values, otherwise random."""
    lists = (not isinstance(entry, Mapping) or entry.get("num") for entry in space.values())
    return "grid" if all(lists) else "random"


class LearningSampler(SamplerConfig):
    """A sampler with a model of the objective."""

    n_startup_trials: int = Field(5, ge=1, le=MOST_TRIALS)
    """Number of random trials before the model is used."""


@samplers.register
class Tpe(LearningSampler):
    """Tree-structured Parzen estimator, multivariate, taking running trials into account."""

    kind: Literal["tpe"] = "tpe"


@samplers.register
class Gp(LearningSampler):
    """Gaussian process with expected improvement, taking running trials into account. It does not learn from pruned
    trials."""

    kind: Literal["gp"] = "gp"
    learns_from_pruned: ClassVar[bool] = False


@samplers.register
class Random(SamplerConfig):
    """Independent random points."""

    kind: Literal["random"] = "random"
    learns: ClassVar[bool] = False


@samplers.register
class Grid(Random):
    """Every combination once, in order. Each entry of the search is a list, or a range of whole numbers or
    with `num`."""

    kind: Literal["grid"] = "grid"  # type: ignore[assignment]  # its cells are given to Optuna: it never draws one

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
