"""Optuna's storage on a database server, PostgreSQL or MySQL, whose lock is a lock of the server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from ablate.sweeps.storages.waiting import ThreadValue, Waiting, wait_in
from ablate.tracking.databases import ASKING, LostConnectionError, hold_server_lock

if TYPE_CHECKING:
    from optuna.storages._rdb.models import TrialModel
    from sqlalchemy import Connection


class DatabaseServer(RDBStorage):
    """Optuna's storage; within its lock trials are created and change their state only while the connection that has
    the lock is open."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._held = ThreadValue()  # the connection of the lock, in the thread that holds it
        self._tried = ThreadValue()  # whether the trial that a thread makes was written once, perhaps in vain
        super().__init__(*args, **kwargs)

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[Connection | None]:
        """Hold the lock under which one process at a time decides what comes next; yields its connection."""
        with hold_server_lock(self.engine, ASKING) as connection, self.guard_writes(connection):
            yield connection

    @contextlib.contextmanager
    def guard_writes(self, held: Connection | None) -> Iterator[None]:
        """Within this context, this thread writes only while the connection `held`, which has the lock, is open."""
        self._held.value = held
        try:
            yield
        finally:
            self._held.value = None

    def _check_lock(self) -> None:
        """Raise LostConnectionError if the lock is lost."""
        if self._held.value is not None:
            from sqlalchemy import text
            from sqlalchemy.exc import SQLAlchemyError

            try:
                self._held.value.execute(text("SELECT 1"))
            except SQLAlchemyError as error:
                raise LostConnectionError("the lock of the database was lost") from error

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        self._check_lock()
        return bool(super().set_trial_state_values(trial_id, state, values))

    def _create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> FrozenTrial:
        self._tried.value = False
        return super()._create_new_trial(study_id, template_trial)

    def _get_prepared_new_trial(self, *args: Any) -> TrialModel:
        """Optuna repeats by itself what failed, seconds later, whoever has the lock by then and whatever was written:
        its first try is the only one here. The connection that it writes on is open already, so that a server which
        goes away after this look at the lock takes both."""
        if self._tried.value:
            raise LostConnectionError("the connection was lost while a trial was written")
        self._check_lock()
        self._tried.value = True
        return super()._get_prepared_new_trial(*args)


class WaitingDatabase(Waiting, DatabaseServer):
    """Optuna's storage; its calls wait for the server for at most two minutes."""

    def _create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> FrozenTrial:
        create = super()._create_new_trial
        return self.write_once(study_id, template_trial, lambda: create(study_id, template_trial), lambda trial: trial)


REPEATABLE = (
    "create_new_study", "set_study_user_attr", "set_study_system_attr", "get_study_id_from_name",
    "get_study_name_from_id", "get_study_directions", "get_study_user_attrs", "get_study_system_attrs",
    "get_all_studies", "_set_trial_param", "get_trial_id_from_study_id_trial_number", "set_trial_intermediate_value",
    "set_trial_user_attr", "set_trial_system_attr", "get_trial", "_get_trials", "_get_best_trial_id",
)  # fmt: skip
"""What Optuna's cache calls."""
wait_in(WaitingDatabase, RDBStorage, REPEATABLE)
