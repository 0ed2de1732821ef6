"""What a sweep searches and how: ranges, samplers and pruners, by the names that Optuna gives them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, PlainSerializer, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from ablate.registry import Config, Kind, Registry

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

Choice = bool | int | float | str | None


class Range(Config):
    """Numbers from `low` to `high`, both included; whole ones where both ends are whole."""

    low: int | float
    """Smallest value."""
    high: int | float
    """Largest value."""
    log: bool = False
    """Whether to search the logarithm."""
    step: int | float | None = None
    """Distance between neighbouring values. None: any value."""
    num: int | None = Field(None, ge=2)
    """For the grid: this many values, evenly spaced (in the logarithm if `log`)."""

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step ({self.step}) must be above 0")
        if self.log and self.low <= 0:
            raise ValueError(f"low ({self.low}) must be above 0 where log is true")
        if self.log and self.step is not None:
            raise ValueError("give either log or step, not both")
        return self

    @property
    def whole(self) -> bool:
        """Whether the values are integers."""
        return all(isinstance(number, int) for number in (self.low, self.high, self.step or 1))

    def distribution(self) -> BaseDistribution:
        """The range in Optuna's words."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(float(self.low), float(self.high), log=self.log, step=self.step)

    def ends(self) -> list[Choice]:
        """The two ends, to validate."""
        return [self.low, self.high]

    def grid(self) -> list[Choice]:
        """The values of a grid. Raises ValueError if neither `num` nor `step` says which."""
        if self.num is not None:
            low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
            points = [low + (high - low) * i / (self.num - 1) for i in range(self.num)]
            values = [float(f"{math.exp(p) if self.log else p:.6g}") for p in points]
            return list(dict.fromkeys(round(v) for v in values)) if self.whole else list(values)
        step = self.step or (1 if self.whole else None)
        if step is None:
            raise ValueError("a grid needs a list of values, or num or step beside low and high")
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        return [
            min(self.high, self.low + i * step if self.whole else round(self.low + i * step, 12)) for i in range(count)
        ]


def _entry(value: Any) -> Range | list[Choice]:
    if isinstance(value, (Range, Mapping)):
        return value if isinstance(value, Range) else Range.model_validate(value)
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, Choice) for v in value):
        return list(value)
    raise PydanticCustomError("entry", "must be a list of values, or a mapping with low and high")


def _plain(entry: Range | list[Choice]) -> Any:
    return entry.model_dump(mode="json", exclude_none=True) if isinstance(entry, Range) else list(entry)


Entry = Annotated[
    Range | list[Choice],
    PlainValidator(_entry, json_schema_input_type=Range | list[Choice]),
    PlainSerializer(_plain, return_type=Any),
]
Space = Mapping[str, Range | Sequence[Choice]]


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The space in Optuna's words, by dotted path."""
    from optuna.distributions import CategoricalDistribution

    return {
        path: entry.distribution() if isinstance(entry, Range) else CategoricalDistribution(tuple(entry))
        for path, entry in space.items()
    }


def contains(entry: Range | Sequence[Choice], value: Choice) -> bool:
    """Whether `value` is one of a list, or within a range and on its steps."""
    if not isinstance(entry, Range):
        return any(value == known and type(value) is type(known) for known in entry)
    if isinstance(value, bool) or not isinstance(value, int if entry.whole else (int, float)):
        return False
    steps = (value - entry.low) / entry.step if entry.step else 0
    return entry.low <= value <= entry.high and abs(steps - round(steps)) < 1e-9


def shown(entry: Any) -> str:
    """A range, a list or a single value in few letters."""
    if isinstance(entry, Range):
        parts = f" step {entry.step:g}" if entry.step else f" in {entry.num}" if entry.num else ""
        return f"{entry.low:g} ... {entry.high:g}{' (log)' if entry.log else ''}{parts}"
    return "none" if entry is None else str(entry)


def cells(space: Space) -> list[dict[str, Choice]]:
    """Every combination of the grid of each entry."""
    grids = [entry.grid() if isinstance(entry, Range) else list(entry) for entry in space.values()]
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*grids)]


# ---------------------------------------------------------------------------------------------------- samplers


class SamplerConfig(Kind):
    """Where the next trial of an arm is taken from. The same seed gives every arm the same first points."""

    kind: str
    seed: int = Field(0, ge=0)
    """What the proposals depend on, with the number of the trial and the finished trials."""

    def stream(self, number: int) -> int:
        """A random seed for the trial `number`."""
        return int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])

    def build(self, number: int) -> BaseSampler:
        """Optuna's sampler for the trial `number` of an arm. Seeding by number makes a continued sweep propose what an
        uninterrupted one would have."""
        raise NotImplementedError

    def problems(self, space: Space) -> list[str]:
        """Why this sampler cannot search `space`."""
        return []


samplers: Registry[SamplerConfig] = Registry("sampler", SamplerConfig, default="tpe")


@samplers.register
class Tpe(SamplerConfig):
    """Tree-structured Parzen estimator, multivariate, aware of the trials that are running."""

    kind: Literal["tpe"] = "tpe"
    n_startup_trials: int = Field(5, ge=0)
    """Trials at random before the model is used."""

    def build(self, number: int) -> BaseSampler:
        from optuna.samplers import TPESampler

        return TPESampler(seed=self.stream(number), n_startup_trials=self.n_startup_trials)


@samplers.register
class Random(SamplerConfig):
    """Independent random points."""

    kind: Literal["random"] = "random"

    def build(self, number: int) -> BaseSampler:
        from optuna.samplers import RandomSampler

        return RandomSampler(seed=self.stream(number))


@samplers.register
class Grid(SamplerConfig):
    """Every combination once, in order. Each entry of the search is a list, or a range with `num` or `step`."""

    kind: Literal["grid"] = "grid"

    def build(self, number: int) -> BaseSampler:
        from optuna.samplers import RandomSampler

        return RandomSampler(seed=self.stream(number))  # never drawn from: the cells are enqueued

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
    n_startup_trials: int = Field(5, ge=1)
    """Trials at random before the first generation."""

    def build(self, number: int) -> BaseSampler:
        from optuna.samplers import CmaEsSampler

        return CmaEsSampler(seed=self.stream(number), n_startup_trials=self.n_startup_trials)

    def problems(self, space: Space) -> list[str]:
        numbers = [path for path, entry in space.items() if isinstance(entry, Range)]
        if len(numbers) == len(space) >= 2:
            return []
        return [f"cmaes searches two or more ranges, given {', '.join(space)}. Take tpe, or search another number"]


# ---------------------------------------------------------------------------------------------------- pruners


class PrunerConfig(Kind):
    """When a trial that does worse than its arm's others is stopped. Trials of other arms are never looked at."""

    kind: str
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
        raise NotImplementedError


pruners: Registry[PrunerConfig] = Registry("pruner", PrunerConfig, default="none")


@pruners.register
class NoPruner(PrunerConfig):
    """Every trial runs to its end."""

    kind: Literal["none"] = "none"

    def build(self, max_steps: int, warmup: int) -> BasePruner:
        from optuna.pruners import NopPruner

        return NopPruner()


@pruners.register
class Hyperband(PrunerConfig):
    """Successive halving in several brackets, which differ in how early they begin (Li et al. 2018, arXiv
    1603.06560)."""

    kind: Literal["hyperband"] = "hyperband"
    reduction_factor: int = Field(3, ge=2)
    """One of this many trials goes on from each rung."""

    def build(self, max_steps: int, warmup: int) -> BasePruner:
        from optuna.pruners import HyperbandPruner

        first = self.first(max_steps, warmup)
        return HyperbandPruner(min_resource=first, max_resource=max_steps, reduction_factor=self.reduction_factor)


@pruners.register
class SuccessiveHalving(PrunerConfig):
    """Asynchronous successive halving (Li et al. 2020, arXiv 1810.05934)."""

    kind: Literal["successive_halving"] = "successive_halving"
    reduction_factor: int = Field(3, ge=2)
    """One of this many trials goes on from each rung."""

    def build(self, max_steps: int, warmup: int) -> BasePruner:
        from optuna.pruners import SuccessiveHalvingPruner

        first = self.first(max_steps, warmup)
        return SuccessiveHalvingPruner(min_resource=first, reduction_factor=self.reduction_factor)


@pruners.register
class Median(PrunerConfig):
    """Stops a trial whose best value so far is worse than the median of its arm's earlier trials at that update."""

    kind: Literal["median"] = "median"
    n_startup_trials: int = Field(4, ge=0)
    """Trials of the arm that run to their end before any is pruned."""

    def build(self, max_steps: int, warmup: int) -> BasePruner:
        from optuna.pruners import MedianPruner

        return MedianPruner(n_startup_trials=self.n_startup_trials, n_warmup_steps=self.first(max_steps, warmup))
