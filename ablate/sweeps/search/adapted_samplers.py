"""Optuna's samplers, adapted to sweeps: a point depends on the seed, our number of the trial and the finished trials
alone, so that a continued sweep proposes what an uninterrupted one does, and diverged trials are learnt from.
"""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, QMCSampler, TPESampler

from ablate.sweeps.attempts import renumber
from ablate.sweeps.search.thinning import ThinnedStudy

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial


class NumberedCmaEs(CmaEsSampler):
    """Optuna's, which counts earlier attempts at a trial in the seed of its point."""

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return super().sample_relative(study, renumber(trial), search_space)


class ThinningSampler(BaseSampler):
    """A base of samplers that learn from at most `most` finished trials of an arm. The next base proposes."""

    most: int
    _thinned: ThinnedStudy | None = None

    def _thin(self, study: Study) -> Any:
        """Return `study` as it is shown to the sampler, which is built anew for each proposal."""
        if self._thinned is None:
            self._thinned = ThinnedStudy(study, self.most)
        return self._thinned

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return super().infer_relative_search_space(self._thin(study), trial)  # type: ignore[safe-super]

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return super().sample_relative(self._thin(study), trial, search_space)  # type: ignore[safe-super]

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return super().sample_independent(  # type: ignore[safe-super]
            self._thin(study), trial, param_name, param_distribution
        )


class ThriftyTpe(ThinningSampler, TPESampler):
    """Optuna's, with at most 500 finished trials. The good ones are 25 at most for any number from 250 on."""

    most = 500


class CarefulGp(ThinningSampler, GPSampler):
    """Optuna's, to which a diverged trial counts as much worse as the worst of the others is worse than the best.
    Optuna's own counts it as the worst of the others: where few trained, it cannot tell the diverged ones from them. It
    learns from at most 100 finished trials: the time of a proposal grows with the third power of their number."""

    most = 100

    def _sample_relative_impl(
        self, study: Study, completed_trials: list[FrozenTrial], *rest: Any, **more: Any
    ) -> dict[str, Any]:
        return super()._sample_relative_impl(study, replace_infinite(completed_trials), *rest, **more)


class NumberedQmc(QMCSampler):
    """The point `number` of a sequence, moved around by a random shift of each dimension (Cranley and Patterson 1976).
    The shift depends on the seed and the name of what is searched: what an arm searches besides does not change it.
    Optuna's own counts in the storage which points were asked for, so that a trial that was asked for twice loses one;
    its first trial is random, its second the corner of the space, and each seed gives the same points.

    Args:
        seed: of the shifts.
        number: of the trial.
        arguments: Optuna's.
    """

    def __init__(self, *, seed: int, number: int, **arguments: Any) -> None:
        super().__init__(seed=seed, warn_asynchronous_seeding=False, warn_independent_sampling=False, **arguments)
        self.number, self.seed = number, seed

    def _find_sample_id(self, study: Study, search_space: dict[str, BaseDistribution]) -> int:
        return self.number

    def _sample_qmc(self, study: Study, search_space: dict[str, BaseDistribution]) -> np.ndarray:
        shifts = [np.random.default_rng([self.seed, zlib.crc32(path.encode())]).random() for path in search_space]
        return (super()._sample_qmc(study, search_space) + shifts) % 1.0

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return one dimension of the point: that of the first trial, before which no space is known."""
        return self.sample_relative(study, trial, {param_name: param_distribution})[param_name]


def replace_infinite(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return `trials` with finite values: those of trials that diverged lie beyond the worst of the others by the range
    of these."""
    finite = [trial.value for trial in trials if trial.value is not None and math.isfinite(trial.value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    beyond = (high - low) or 1.0
    return [_replace_value(trial, high + beyond, low - beyond) for trial in trials]


def _replace_value(trial: FrozenTrial, high: float, low: float) -> FrozenTrial:
    """Return `trial`, or a copy with one of the two values where its own is infinite."""
    if trial.value is None or math.isfinite(trial.value):
        return trial
    shown = copy.copy(trial)
    shown.value = high if trial.value > 0 else low
    return shown
