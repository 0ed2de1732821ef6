"""Optuna's storage on a database server, PostgreSQL or MySQL, whose lock is a lock of the server.

The server may be temporarily unreachable, for example during a restart. A call waits for it and is repeated; repeating
a call that the server carried out before the connection broke has no further effect. Within the lock of the storage a
call is not made again by itself: the lock went with the connection, so the whole step begins anew
(`ablate.sweeps.storage_lock.do_locked`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from ablate.tracking.databases import ASKING, LostConnectionError, hold_server_lock, repeat_while_away

if TYPE_CHECKING:
    from optuna.storages._rdb.models import TrialModel
    from sqlalchemy import Connection

T = TypeVar("T")


class _ThreadState(threading.local):
    """What each thread is doing."""

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
        """Optuna repeats by itself what failed, seconds later, whoever has the lock by then and whatever was written:
        its first try is the only one here. The connection that it writes on is open already, so that a server which
        goes away after this look at the lock takes both."""
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
