"""Fewer trials for samplers whose proposals take longer the more trials they learn from. Proposals are made under the
lock of the storage: while one takes seconds, all workers wait."""

from __future__ import annotations

import heapq
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
