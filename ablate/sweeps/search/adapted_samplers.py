"""Optuna's samplers, adapted to sweeps: a point depends on the seed, our number of the trial and the finished trials
alone, so that a continued sweep proposes what an uninterrupted one does, and diverged trials are learnt from.
"""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from optuna.samplers import BaseSampler, GPSampler, TPESampler

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial, TrialState


class ThinnedStudy:
    """A study that shows a sampler at most `most` of its finished trials, read once.

    Args:
        study: Optuna's.
        most: number of finished trials.
    """

    def __init__(self, study: Study, most: int) -> None:
        self._study, self._most = study, most
        self._shown: list[FrozenTrial] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)

    def _get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None, use_cache: bool = False
    ) -> list[FrozenTrial]:
        """Return the trials in one of `states`, as Optuna's samplers ask for them."""
        if self._shown is None:
            trials = self._study._get_trials(deepcopy=False, use_cache=True)
            self._shown = thin_trials(trials, self._most, self._study.direction.name == "MAXIMIZE")
        return [trial for trial in self._shown if states is None or trial.state in states]

    def get_trials(self, deepcopy: bool = True, states: Container[TrialState] | None = None) -> list[FrozenTrial]:
        """Return the trials in one of `states`."""
        return self._get_trials(deepcopy, states)


def thin_trials(trials: Sequence[FrozenTrial], most: int, maximize: bool) -> list[FrozenTrial]:
    """Return the unfinished ones of `trials` and at most `most` finished ones: the best quarter of these, and of the
    others an even sample in their order, so that the same trials give the same proposal."""
    if len(trials) <= most:
        return list(trials)
    from optuna.trial import TrialState

    ended = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    finished: list[FrozenTrial] = []
    unfinished: list[FrozenTrial] = []
    for trial in trials:
        (finished if trial.state in ended else unfinished).append(trial)
    if len(finished) <= most:
        return list(trials)
    sign = -1.0 if maximize else 1.0
    values = [(sign * (t.value or 0.0), i) for i, t in enumerate(finished) if t.state is TrialState.COMPLETE]
    kept = {i for _, i in heapq.nsmallest(most // 4, values)}
    others, room = [i for i in range(len(finished)) if i not in kept], most - len(kept)
    kept.update(others[i * len(others) // room] for i in range(room))
    shown = [finished[i] for i in kept] + unfinished
    return sorted(shown, key=lambda trial: trial.number)


class ThinningSampler(BaseSampler):
    """A base of samplers that learn from at most `most` finished trials of an arm, as proposals are made under the lock
    of the storage: while one takes seconds, all workers wait. The next base proposes."""

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
