"""Optuna's cache before a database, for studies of thousands of trials."""

from __future__ import annotations

import copy
from collections.abc import Container

from optuna.storages._cached_storage import _CachedStorage
from optuna.trial import FrozenTrial, TrialState


class TrialCache(_CachedStorage):
    """Optuna's cache. It sorts numbers, which mostly are in order already, where Optuna's calls a function for each
    trial at each reading."""

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials of a study in one of `states`, by number."""
        self._read_trials_from_remote_storage(study_id)
        with self._lock:
            known = self._studies[study_id].trials
            trials = [known[number] for number in sorted(known)]
            if states is not None:
                trials = [trial for trial in trials if trial.state in states]
            return copy.deepcopy(trials) if deepcopy else trials
