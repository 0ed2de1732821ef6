"""Optuna's storage on a database server that may be temporarily unreachable, for example during a restart. A call waits
for the server and is repeated; repeating a call that the server carried out before the connection broke has no further
effect. Within the lock of the storage a call is not made again by itself: the lock went with the connection, so the
whole step begins anew (`ablate.sweeps.storage_lock.do_locked`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from ablate.tracking.databases import LostConnectionError, repeat_while_away

if TYPE_CHECKING:
    from optuna.storages._rdb.models import TrialModel
    from sqlalchemy import Connection

T = TypeVar("T")


class WaitingStorage(RDBStorage):
    """Optuna's storage; its calls wait for the server for at most two minutes."""

    _lock: Connection | None = None  # that of the lock that this process holds
    _has_tried = False  # whether the trial that is being made was written once, perhaps in vain

    @contextlib.contextmanager
    def guard_writes(self, connection: Connection | None) -> Iterator[None]:
        """Within this context, trials are created and change their state only while `connection`, which has the lock,
        is open."""
        self._lock = connection
        try:
            yield
        finally:
            self._lock = None

    def _check_lock(self) -> None:
        """Raise LostConnectionError if the lock is lost."""
        if self._lock is not None:
            from sqlalchemy import text
            from sqlalchemy.exc import SQLAlchemyError

            try:
                self._lock.execute(text("SELECT 1"))
            except SQLAlchemyError as error:
                raise LostConnectionError("the lock of the database was lost") from error

    def wait(self, action: Callable[[], T]) -> T:
        """Return the result of `action`, repeated while the server is unreachable."""
        return action() if self._lock is not None else repeat_while_away(action, self.url)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        tries = 0

        def change() -> bool:
            nonlocal tries
            tries += 1
            self._check_lock()
            try:
                return bool(RDBStorage.set_trial_state_values(self, trial_id, state, values))
            except UpdateFinishedTrialError:
                if tries > 1 and self.get_trial(trial_id).state == state:  # the connection broke after it was written
                    return True
                raise

        return self.wait(change)

    def _create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> FrozenTrial:
        tries = 0

        def create() -> FrozenTrial:
            nonlocal tries
            tries += 1
            self._has_tried = False
            if tries > 1 and template_trial is not None and template_trial.user_attrs:
                for trial in self.get_all_trials(study_id):
                    if trial.user_attrs == template_trial.user_attrs:  # the connection broke after it was written
                        return trial
            return RDBStorage._create_new_trial(self, study_id, template_trial)

        return self.wait(create)

    def _get_prepared_new_trial(self, *args: Any) -> TrialModel:
        """Optuna repeats by itself what failed, seconds later, whoever has the lock by then and whatever was written:
        its first try is the only one here. The connection that it writes on is open already, so that a server which
        goes away after this look at the lock takes both."""
        if self._has_tried:
            raise LostConnectionError("the connection was lost while a trial was written")
        self._check_lock()
        self._has_tried = True
        return RDBStorage._get_prepared_new_trial(self, *args)


def _make_waiting(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def call(self: WaitingStorage, *args: Any, **kwargs: Any) -> Any:
        return self.wait(lambda: plain(self, *args, **kwargs))

    return call


REPEATABLE = (
    "create_new_study", "set_study_user_attr", "set_study_system_attr", "get_study_id_from_name",
    "get_study_name_from_id", "get_study_directions", "get_study_user_attrs", "get_study_system_attrs",
    "get_all_studies", "_set_trial_param", "get_trial_id_from_study_id_trial_number", "set_trial_intermediate_value",
    "set_trial_user_attr", "set_trial_system_attr", "get_trial", "_get_trials", "_get_best_trial_id",
    "record_heartbeat", "_get_stale_trial_ids",
)  # fmt: skip
"""What Optuna's cache calls, and what has the same effect when it is made twice."""
for _name in REPEATABLE:
    setattr(WaitingStorage, _name, _make_waiting(getattr(RDBStorage, _name)))
