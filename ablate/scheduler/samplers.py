"""Optuna's samplers, pruners and distributions for what a sweep file names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ablate.sweeps.search.methods import Gp, Median, PrunerConfig, Random, SamplerConfig, Tpe
from ablate.sweeps.search.space import Range, Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler


def build_sampler(config: SamplerConfig, number: int) -> BaseSampler:
    """Return Optuna's sampler for the trial `number` of an arm. Seeding by number makes a continued sweep propose the
    same points as an uninterrupted one."""
    from optuna.samplers import RandomSampler

    from ablate.scheduler.optuna_private import CarefulGp, ThriftyTpe

    seed = config.derive_seed(number)
    if isinstance(config, (Tpe, Gp)):
        kind: Any = ThriftyTpe if isinstance(config, Tpe) else CarefulGp
        sampler: BaseSampler = kind(n_startup_trials=config.n_startup_trials, seed=seed)
        return sampler
    if isinstance(config, Random):  # and the grid, whose cells are given to Optuna: it never draws one
        return RandomSampler(seed=seed)
    plugin: Any = config
    built: BaseSampler = plugin.build(number)
    return built


def build_pruner(config: PrunerConfig, max_steps: int, warmup: int) -> BasePruner:
    """Return Optuna's pruner for runs of `max_steps` updates."""
    from optuna.pruners import MedianPruner, NopPruner

    if not isinstance(config, Median):
        return NopPruner()
    return MedianPruner(4, config.find_first_step(max_steps, warmup))


def to_distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return Optuna's distributions by dotted path."""
    return {path: to_distribution(entry) for path, entry in space.items()}


def to_distribution(entry: Range | Sequence[Any]) -> BaseDistribution:
    """Return Optuna's distribution for an entry of a search."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(entry, Range):
        return CategoricalDistribution(tuple(entry))
    if entry.whole:
        return IntDistribution(int(entry.low), int(entry.high), log=entry.log)
    return FloatDistribution(float(entry.low), float(entry.high), log=entry.log)
