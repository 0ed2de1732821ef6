"""Optuna's samplers, adapted to sweeps: a point depends on the seed, our number of the trial and the finished trials
alone, so that a continued sweep proposes what an uninterrupted one does, and diverged trials are learnt from.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from optuna.samplers import BaseSampler, GPSampler, TPESampler

from ablate.sweeps.search.thinning import ThinnedStudy

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial


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
