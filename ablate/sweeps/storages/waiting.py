"""Calls of a storage on a server that may be temporarily unreachable, for example during a restart. A call waits for
the server and is repeated; repeating a call that the server carried out before the connection broke has no further
effect. Within the lock of the storage a call is not made again by itself: the lock went with the connection, so the
whole step begins anew (`ablate.sweeps.storage_lock.do_locked`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from ablate.tracking.databases import repeat_while_away

T = TypeVar("T")


class ThreadValue(threading.local):
    """A value of each thread; None until it is set."""

    value: Any = None


class Waiting(BaseStorage):
    """A base of storages whose calls wait for their server for at most two minutes. The next base does the calls."""

    url: str
    _held: ThreadValue
    """What proves the lock, in the thread that holds it; set by the class that takes it."""

    def wait(self, action: Callable[[], T]) -> T:
        """Return the result of `action`, repeated while the server is unreachable."""
        return action() if self._held.value is not None else repeat_while_away(action, self.url)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        plain, tries = super().set_trial_state_values, 0  # type: ignore[safe-super]

        def change() -> bool:
            nonlocal tries
            tries += 1
            try:
                return bool(plain(trial_id, state, values))
            except UpdateFinishedTrialError:
                if tries > 1 and self.get_trial(trial_id).state == state:  # the connection broke after it was written
                    return True
                raise

        return self.wait(change)

    def write_once(
        self,
        study_id: int,
        template: FrozenTrial | None,
        create: Callable[[], T],
        describe: Callable[[FrozenTrial], T],
    ) -> T:
        """Return what `create` returns for the trial that it writes, with the attributes of `template`; if the server
        had written it before it went away, what `describe` returns for it."""
        tries = 0

        def find_or_create() -> T:
            nonlocal tries
            tries += 1
            if tries > 1 and template is not None and template.user_attrs:
                for trial in self.get_all_trials(study_id, deepcopy=False):
                    if trial.user_attrs == template.user_attrs:
                        return describe(trial)
            return create()

        return self.wait(find_or_create)


def wait_in(storage: type[Waiting], base: type, names: Sequence[str]) -> None:
    """Let the methods `names` of `base` wait for the server in `storage`: those that have the same effect when they are
    called twice."""
    for name in names:
        setattr(storage, name, _make_waiting(getattr(base, name)))


def _make_waiting(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def call(self: Waiting, *args: Any, **kwargs: Any) -> Any:
        return self.wait(lambda: plain(self, *args, **kwargs))

    return call
