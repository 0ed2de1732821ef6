"""The process that owns a running trial: whether it lives, on this machine by its pid, on others by its heartbeat."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial


HEARTBEAT = 30  # seconds between two signs of life of a trial, for other machines
GRACE = 10 * HEARTBEAT  # seconds without one after which the trial is taken up


def describe_process() -> dict[str, Any]:
    """Return an identifier of this process that another process can check: host, pid and start time."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": _read_start_time(os.getpid())}


def is_orphan(trial: FrozenTrial) -> bool:
    """Return whether a running trial's process was on this machine and has ended."""
    who = trial.user_attrs.get("owner")
    if not isinstance(who, Mapping) or who.get("host") != socket.gethostname():
        return False
    return who.get("started") != _read_start_time(int(who["pid"]))


def record_heartbeat(study: Study, trial: FrozenTrial | Trial) -> None:
    """Record a heartbeat of a running trial, for machines that cannot see its process."""
    if has_heartbeats(study):
        study._storage.record_heartbeat(trial._trial_id)  # type: ignore[attr-defined]


def fail_stale_trials(study: Study) -> list[FrozenTrial]:
    """Fail the trials of other machines without a heartbeat for minutes, and return them for a retry."""
    import optuna

    if not has_heartbeats(study):
        return []
    gone = set(study._storage._get_stale_trial_ids(study._study_id))  # type: ignore[attr-defined]
    if not gone:
        return []
    optuna.storages.fail_stale_trials(study)
    return [t for t in study.get_trials(deepcopy=False) if t._trial_id in gone and t.state.name == "FAIL"]


def has_heartbeats(study: Study) -> bool:
    """Return whether the storage of a study supports heartbeats; one in memory, which no other process sees, does
    not."""
    from optuna.storages._heartbeat import is_heartbeat_enabled

    return is_heartbeat_enabled(study._storage)


def _read_start_time(pid: int) -> str | None:
    """Return the time a process started, which tells it from a later one of the same pid; None where there is none, or
    a zombie: it has ended, and its parent has not asked how."""
    with contextlib.suppress(OSError, IndexError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else fields[18]
    if Path("/proc/self").exists():
        return None
    try:  # no /proc: the pid alone has to do
        os.kill(pid, 0)
    except OSError:
        return None
    return "alive"
