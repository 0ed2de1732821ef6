"""The trials of an Optuna study, in which a trial that failed and was retried has several attempts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate import tracking

ENDING = "ending"  # the attribute of a trial that says how it ended
RUNGS = "rungs"  # that of a trial with the rungs that it has ended

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial


def list_last_attempts(frozen: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the last attempts at the trials of a study."""
    continued = {trial.user_attrs["continues"] for trial in frozen if "continues" in trial.user_attrs}
    return [trial for trial in frozen if trial.number not in continued] if continued else list(frozen)


Choose = Callable[[dict[str, Any], Sequence[str], Sequence[Mapping[str, Any]]], dict[str, Any]]
"""(a point, those of its paths that a sampler has chosen, the points of other trials) -> the point to train."""


def open_trial(
    study: Study,
    trial_id: int,
    distributions: Mapping[str, BaseDistribution],
    known: Sequence[FrozenTrial],
    choose: Choose = lambda point, free, taken: point,
) -> Trial:
    """Return a running trial, to be trained by this process, with all its values: those that are not chosen yet, as it
    is new or its first process was killed, are chosen now, by the sampler and then by `choose`. `known`: the trials of
    the study, read since the lock of the storage was taken; samplers need not read them once more."""
    from optuna import Trial

    trial = Trial(study, trial_id)
    others = [frozen for frozen in known if frozen._trial_id != trial_id]
    study._thread_local.cached_all_trials = sorted(
        [*others, trial._cached_frozen_trial], key=lambda frozen: frozen.number
    )
    fixed = trial._fixed_params
    missing = [name for name in distributions if name not in trial.params]
    storage, trial.storage = trial.storage, _Unwritten(trial.storage)  # type: ignore
    proposed = {name: trial._suggest(name, distributions[name]) for name in missing}
    trial.storage = storage
    if free := [name for name in missing if name not in fixed]:
        proposed |= choose({**trial.params, **proposed}, free, [frozen.params for frozen in others])
    if len(free) > 1:
        # In one write before those of each value: after a process that was killed between these, a sampler would begin
        # with the second value, and draw another one.
        storage.set_trial_system_attr(trial_id, "fixed_params", {**fixed, **trial.params, **proposed})
    for name in missing:
        internal = distributions[name].to_internal_repr(proposed[name])
        storage.set_trial_param(trial_id, name, internal, distributions[name])
        trial._cached_frozen_trial.params[name] = proposed[name]
    return trial


class _Unwritten:
    """A storage for a trial that chooses its values: another one, in which the values are not written."""

    def __init__(self, storage: BaseStorage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def set_trial_param(self, *_: Any) -> None:
        """Leave a value unwritten."""


def trial_number(trial: FrozenTrial | Trial) -> int:
    """Return the number of a trial in MLflow and in the report: its index among the trials of its arm."""
    return int(trial.user_attrs.get("number", trial.number))


def read_trial_notes(trial: FrozenTrial) -> dict[str, Any]:
    """Return the notes on a trial and its result."""
    return {**trial.user_attrs, **trial.user_attrs.get(ENDING, {})}


def locate_traceback(title: str, label: str) -> Path:
    """Return the file for the traceback of a failed trial of the sweep `title`."""
    name = label.replace("#", "").replace(" ", "-")
    return tracking.open_folder("failures") / f"{title}-{name}.txt"
