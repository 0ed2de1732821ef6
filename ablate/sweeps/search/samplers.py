"""The samplers of a sweep, which choose its next points: Optuna's, under short names and by Optuna's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field

from ablate.config.base import Kind
from ablate.config.bounds import MOST_SEED, MOST_TRIALS
from ablate.config.errors import Problem
from ablate.config.registry import Registry
from ablate.sweeps.search.optuna_classes import (
    NUMBERED,
    PACKAGES,
    instantiate,
    learns,
    learns_from_pruned,
    refuse_space,
)
from ablate.sweeps.search.optuna_kind import NamedKind, OptunaKind
from ablate.sweeps.search.space import Space, list_cells

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class SamplerConfig(Kind):
    """A rule for choosing the next trial of an arm. The same seed gives every arm the same first points."""

    seed: int = Field(0, ge=0, le=MOST_SEED)
    """Seed of the proposals, which also depend on the number of the trial and the finished trials."""

    def derive_seed(self, number: int) -> int:
        """Return a random seed for the trial `number`."""
        return int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])

    def build(self, number: int) -> BaseSampler:
        """Return Optuna's sampler for the trial `number` of an arm. Seeding by number makes a continued sweep propose
        the same points as an uninterrupted one."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Get ready before the first trial. Raises ConfigError."""

    def validate_arguments(self) -> list[Problem]:
        """Return what is wrong with it, whatever it searches."""
        return []

    def validate(self, space: Space) -> list[Problem]:  # type: ignore[override]
        """Return the reason that this sampler cannot search `space`."""
        return []

    def describe(self) -> str:
        """Return what a plan says of it."""
        return self.kind

    @property
    def learns(self) -> bool:
        """Whether its proposals depend on trials that have ended."""
        return True

    def learns_from_pruned(self) -> bool:
        """Return whether it learns from trials that a pruner has stopped, where it learns at all."""
        return True


samplers: Registry[SamplerConfig] = Registry("sampler", SamplerConfig, default="gp")


def choose_plain_sampler(space: Mapping[str, Any]) -> str:
    """Return the sampler for the entries of a file that does not learn from trials: the grid where each entry says its
    values, otherwise qmc."""
    lists = (not isinstance(entry, Mapping) or entry.get("num") or entry.get("step") for entry in space.values())
    return "grid" if all(lists) else "qmc"


def build_sampler(name: str, arguments: Mapping[str, Any], config: SamplerConfig, number: int) -> BaseSampler:
    """Return the sampler `name` of Optuna for the trial `number` of an arm."""
    cls = PACKAGES["samplers"].find_adapted(name)
    own = {"seed": config.seed, "number": number} if name in NUMBERED else {"seed": config.derive_seed(number)}
    sampler: BaseSampler = instantiate(cls, **arguments, **own)
    return sampler


class OptunaSampler(OptunaKind, SamplerConfig):
    """A sampler of Optuna under a short name, with this platform's defaults."""

    package = "samplers"
    set_by_sweep = ("independent_sampler", "source_trials")
    not_arguments = ("kind", "options", "seed")

    def build(self, number: int) -> BaseSampler:
        return build_sampler(self.optuna_class, self.list_arguments(), self, number)

    def validate(self, space: Space) -> list[Problem]:  # type: ignore[override]
        reason = refuse_space(self.optuna_class, space)
        return [Problem("search", f"{self.kind} {reason}")] if reason else []

    @property
    def learns(self) -> bool:
        return learns(self.optuna_class)

    def learns_from_pruned(self) -> bool:
        return learns_from_pruned(self.optuna_class)


@samplers.register
class Tpe(OptunaSampler):
    """Tree-structured Parzen estimator, multivariate, taking running trials into account."""

    kind: Literal["tpe"] = "tpe"
    optuna_class = "TPESampler"
    n_startup_trials: int = Field(5, ge=0, le=MOST_TRIALS)
    """Number of random trials before the model is used."""


@samplers.register
class Gp(OptunaSampler):
    """Gaussian process with expected improvement, taking running trials into account. It does not learn from pruned
    trials."""

    kind: Literal["gp"] = "gp"
    optuna_class = "GPSampler"
    n_startup_trials: int = Field(5, ge=1, le=MOST_TRIALS)
    """Number of random trials before the model is used."""


@samplers.register
class Qmc(OptunaSampler):
    """Quasi-Monte Carlo: points that fill the space evenly (Sobol's sequence), whatever is found."""

    kind: Literal["qmc"] = "qmc"
    optuna_class = "QMCSampler"


@samplers.register
class Random(OptunaSampler):
    """Independent random points."""

    kind: Literal["random"] = "random"
    optuna_class = "RandomSampler"


@samplers.register
class Grid(OptunaSampler):
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
class CmaEs(OptunaSampler):
    """Covariance matrix adaptation, for two or more numbers."""

    kind: Literal["cmaes"] = "cmaes"
    optuna_class = "CmaEsSampler"
    n_startup_trials: int = Field(5, ge=1, le=MOST_TRIALS)
    """Number of random trials before the first generation."""


@samplers.register
class NamedSampler(NamedKind, SamplerConfig):
    """A sampler of Optuna by its name, such as GPSampler; further keys are its arguments."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["optuna"] = "optuna"
    name: str
    """Its name in Optuna: `ablate list library-samplers`."""
    package = "samplers"

    def build(self, number: int) -> BaseSampler:
        return build_sampler(self.name, self.list_arguments(), self, number)

    def build_example(self) -> BaseSampler:
        return self.build(0)

    def validate(self, space: Space) -> list[Problem]:  # type: ignore[override]
        reason = refuse_space(self.name, space)
        return [Problem("search", f"{self.name} {reason}")] if reason else []

    @property
    def learns(self) -> bool:
        return learns(self.name)

    def learns_from_pruned(self) -> bool:
        return learns_from_pruned(self.name)

    def describe(self) -> str:
        limit = PACKAGES["samplers"].entries[self.name].limit
        return f"{self.name} of Optuna" + (f" ({limit})" if limit else "")
