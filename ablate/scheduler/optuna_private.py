"""Everything private of Optuna that a sweep needs: the place to look at when its version changes.

Samplers are adapted so that a point depends on the seed, our number of the trial and the finished trials alone: a
continued sweep proposes what an uninterrupted one does, and diverged trials are learnt from. A storage on a database
server (PostgreSQL or MySQL) waits for the server, which may be away for example during a restart: a call is repeated,
and repeating one that the server carried out before the connection broke has no further effect. Within the lock of the
storage a call is not made again by itself: the lock went with the connection, so the whole step begins anew
(`ablate.scheduler.storage.do_locked`).
"""

from __future__ import annotations

import contextlib
import copy
import heapq
import math
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from optuna import Trial
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.storages.journal._file import BaseJournalFileLock
from optuna.trial import FrozenTrial, TrialState

from ablate.tracking.databases import ASKING, LostConnectionError, hold_server_lock, repeat_while_away

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages._rdb.models import TrialModel
    from optuna.study import Study
    from sqlalchemy import Connection

JournalLock = BaseJournalFileLock
T = TypeVar("T")
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


# ------------------------------------------------------------------ samplers


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


# ------------------------------------------------------------------ storages


def find_backend(storage: BaseStorage) -> Any:
    """Return the storage without the cache that Optuna has before a database."""
    return storage._backend if isinstance(storage, _CachedStorage) else storage


class TrialCache(_CachedStorage):
    """Optuna's cache, for studies of thousands of trials. It sorts numbers, which mostly are in order already, where
    Optuna's calls a function for each trial at each reading."""

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


class _ThreadState(threading.local):
    """The state of each thread."""

    held: Connection | None = None
    """The connection of the lock, if the thread holds it."""
    tried = False
    """Whether the trial that the thread creates was written once, perhaps in vain."""


class DatabaseServer(RDBStorage):
    """Optuna's storage; its calls wait for the server for at most two minutes. Within its lock trials are created and
    change their state only while the connection that has the lock is open."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._thread = _ThreadState()
        super().__init__(*args, **kwargs)

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the lock under which one process at a time decides what comes next."""
        with hold_server_lock(self.engine, ASKING) as connection:
            self._thread.held = connection
            try:
                yield
            finally:
                self._thread.held = None

    def _check_lock(self) -> None:
        """Raise LostConnectionError if the lock is lost."""
        if self._thread.held is not None:
            from sqlalchemy import text
            from sqlalchemy.exc import SQLAlchemyError

            try:
                self._thread.held.execute(text("SELECT 1"))
            except SQLAlchemyError as error:
                raise LostConnectionError("the lock of the database was lost") from error

    def wait(self, action: Callable[[], T]) -> T:
        """Return the result of `action`, repeated while the server is unreachable."""
        return action() if self._thread.held is not None else repeat_while_away(action, self.url)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        plain, tries = super().set_trial_state_values, 0

        def change() -> bool:
            nonlocal tries
            tries += 1
            self._check_lock()
            try:
                return bool(plain(trial_id, state, values))
            except UpdateFinishedTrialError:
                if tries > 1 and self.get_trial(trial_id).state == state:  # the connection broke after it was written
                    return True
                raise

        return self.wait(change)

    def _create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> FrozenTrial:
        """Return the trial that is written, with the attributes of the template; if the server had written it before it
        went away, that one."""
        plain, tries = super()._create_new_trial, 0

        def find_or_create() -> FrozenTrial:
            nonlocal tries
            tries += 1
            if tries > 1 and template_trial is not None and template_trial.user_attrs:
                for trial in self.get_all_trials(study_id, deepcopy=False):
                    if trial.user_attrs == template_trial.user_attrs:
                        return trial
            self._thread.tried = False
            return plain(study_id, template_trial)

        return self.wait(find_or_create)

    def _get_prepared_new_trial(self, *args: Any) -> TrialModel:
        """Optuna itself repeats a failed call seconds later, whichever process has the lock by then and whatever was
        written: here its first try is the only one. The connection that it writes on is open already, so that a server
        which goes away after this look at the lock takes both."""
        if self._thread.tried:
            raise LostConnectionError("the connection was lost while a trial was written")
        self._check_lock()
        self._thread.tried = True
        return super()._get_prepared_new_trial(*args)


def _make_waiting(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that waits for the server; `plain` has the same effect when it is called twice."""

    @wraps(plain)
    def call(self: DatabaseServer, *args: Any, **kwargs: Any) -> Any:
        return self.wait(lambda: plain(self, *args, **kwargs))

    return call


for _name in (  # what Optuna's cache calls
    "create_new_study", "set_study_user_attr", "set_study_system_attr", "get_study_id_from_name",
    "get_study_name_from_id", "get_study_directions", "get_study_user_attrs", "get_study_system_attrs",
    "get_all_studies", "_set_trial_param", "get_trial_id_from_study_id_trial_number", "set_trial_intermediate_value",
    "set_trial_user_attr", "set_trial_system_attr", "get_trial", "_get_trials", "_get_best_trial_id",
):  # fmt: skip
    setattr(DatabaseServer, _name, _make_waiting(getattr(RDBStorage, _name)))
