"""The lease of a process on the trial that it trains, kept by signs of life and taken over when those stop.

For each trial the storage holds its owner (the process that trains it, with the number of the claim; without a process
the trial is free) and its signs (counted up every few seconds, with the progress of the training). Where pids are those
of the process that looks, a process is known by its pid. One on another machine or in another container, or one that
stands still, is known by signs that do not change for `EXPIRY` seconds by the clock of the process that looks: clocks
of machines differ.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.config.errors import TakenOverError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

logger = logging.getLogger(__name__)

OWNER, SIGNS = "owner", "signs"  # attributes of a trial
DEATHS = 3  # so often a process may die in one trial without progress while the command that started it lives
LOSSES = 10  # so often where all died together, or the process was lost with its machine
ENDED = "its process has ended"
SILENT = "its process gave no sign of life"  # it may stand still, and hold the lock of its run
TAKEN_OVER = "taken over"  # of an owner: from a process that may still live
_COUNTS = ("deaths", "losses")  # of an owner
PAUSED = "paused"  # of an owner without a process: the trial has ended a rung
BEAT = 10.0  # seconds between two signs of life
_UNKNOWN = "alive"  # the start of a process that can only be asked whether it lives
EXPIRY = 300.0  # seconds without a sign after which a trial may be taken over


def describe_process(pid: int | None = None) -> dict[str, Any]:
    """Return an identifier of a process of this machine (default: this one) that another can check: where its pid
    holds, pid and start time."""
    pid = os.getpid() if pid is None else pid
    return {"host": find_place(), "pid": pid, "started": _read_start_time(pid)}


@functools.cache
def find_place() -> str:
    """Return the name of the space of pids that this process sees: host, and on Linux the boot of the machine and
    the PID namespace. Containers may have one host name, and each counts its processes from 1."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def read_owner(trial: FrozenTrial) -> Mapping[str, Any]:
    """Return the owner of a trial: `claim`, the number of times that it was taken, and of a process
    `describe_process`."""
    owner = trial.user_attrs.get(OWNER)
    return owner if isinstance(owner, Mapping) else {}


def read_claim(trial: FrozenTrial) -> int:
    """Return how often a trial was taken."""
    return int(read_owner(trial).get("claim", 0))


def is_free(trial: FrozenTrial) -> bool:
    """Return whether a trial was begun and no process trains it: it was interrupted, or its process was killed while it
    took it."""
    return trial.state.name == "RUNNING" and "pid" not in read_owner(trial)


def is_paused(trial: FrozenTrial) -> bool:
    """Return whether a begun trial has ended a rung, and waits for the decision there."""
    return is_free(trial) and bool(read_owner(trial).get(PAUSED))


def is_orphan(trial: FrozenTrial) -> bool:
    """Return whether a running trial's process was on this machine and has ended."""
    owner = read_owner(trial)
    return "pid" in owner and has_ended(owner)


def has_ended(process: Mapping[str, Any]) -> bool:
    """Return whether a process, as of `describe_process`, was on this machine, in this container, and has ended."""
    if process.get("host") != find_place():
        return False
    before, now = process.get("started"), _read_start_time(int(process["pid"]))
    return now is None or (before != now and _UNKNOWN not in (before, now))


def is_alive(process: Mapping[str, Any]) -> bool:
    """Return whether a process, as of `describe_process`, is on this machine, in this container, and runs."""
    return process.get("host") == find_place() and not has_ended(process)


def build_owner(begun: FrozenTrial | None) -> dict[str, Any]:
    """Return how the storage names this process as the owner of a trial: of `begun`, which had no process, or of a new
    one."""
    before = read_owner(begun) if begun else {}
    return {
        **describe_process(),
        "claim": before.get("claim", 0) + 1,
        "parent": describe_process(os.getppid()),
        TAKEN_OVER: before.get("reason") == SILENT,
        "validations": len(begun.intermediate_values) if begun else 0,
        **{key: before[key] for key in _COUNTS if key in before},
    }


def build_free_owner(trial: FrozenTrial, reason: str, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the owner of a trial without a process, to be continued by the next that asks; `more` is kept with the
    reason."""
    return {"claim": read_claim(trial), "reason": reason, **(more or {})}


def count_losses(trial: FrozenTrial) -> tuple[dict[str, int], int]:
    """Return how often processes were lost in a trial since its last validation, the present loss included, for
    `release`; and, if that is too often, how often, otherwise 0."""
    owner = read_owner(trial)
    kind, most = ("deaths", DEATHS) if is_alive(owner.get("parent", {})) else ("losses", LOSSES)
    has_moved = len(trial.intermediate_values) > owner.get("validations", 0)
    counts = {key: 0 if has_moved else owner.get(key, 0) for key in _COUNTS}
    counts[kind] += 1
    return counts, counts[kind] if counts[kind] >= most else 0


class Watch:
    """The signs of running trials as this process has seen them."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[object, float]] = {}
        # study and number of a trial -> its claim and signs, and since when

    def is_silent(self, key: tuple[str, int], trial: FrozenTrial) -> bool:
        """Return whether the trial `key` has given no sign of life for `EXPIRY` seconds of watching."""
        signs = (read_owner(trial).get("claim"), trial.user_attrs.get(SIGNS))
        before, since = self._seen.get(key, (None, 0.0))
        if signs != before:
            self._seen[key] = signs, time.monotonic()
            return False
        return time.monotonic() - since > EXPIRY


class Lease:
    """The claim of this process on a trial. Within its context, a thread writes signs of life.

    Args:
        storage: Optuna's.
        trial_id: of a trial that this process owns.
        owner: this process, as the storage names the owner of the trial.
    """

    def __init__(self, storage: BaseStorage, trial_id: int, owner: Mapping[str, Any]) -> None:
        self._storage, self._id, self._owner = storage, trial_id, owner
        self._signs: dict[str, Any] = {
            "claim": self._owner["claim"],
            "beat": 0,
            "resumed": 0,
            "step": 0,
            "loss": None,
        }
        self._last = time.monotonic()
        self._is_lost = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, name="lease", daemon=True)

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(BEAT)

    def note_start(self, step: int) -> None:
        """Give a sign of life: the training goes on after update `step`."""
        self._signs = {**self._signs, "resumed": step, "step": step}
        self.give_sign()

    def note(self, step: int, loss: float) -> None:
        """Give the next sign of life with this progress."""
        self._signs = {**self._signs, "step": step, "loss": loss}

    def is_held(self) -> bool:
        """Return whether the storage says that the trial is still this process's."""
        frozen = self._storage.get_trial(self._id)
        return frozen.state.name == "RUNNING" and read_owner(frozen) == self._owner

    def check(self) -> None:
        """Raise TakenOverError if another process has taken the trial over."""
        self._is_lost = self._is_lost or not self.is_held()
        if self._is_lost:
            raise TakenOverError("Another process has taken the trial over, since this one gave no sign of life.")

    def check_if_old(self) -> None:
        """Call `check` if the last sign of life is so old that the trial may have been taken over: the process stood
        still, or could not reach the storage."""
        if self._is_lost or time.monotonic() - self._last > EXPIRY / 2:
            self.check()
            self._last = time.monotonic()

    def give_sign(self) -> None:
        """Write a sign of life."""
        self._signs = {**self._signs, "beat": self._signs["beat"] + 1}
        self._storage.set_trial_user_attr(self._id, SIGNS, self._signs)
        self._last = time.monotonic()

    def _live(self) -> None:
        while not self._ended.wait(BEAT):
            try:
                if self.is_held():
                    self.give_sign()
                else:
                    self._is_lost = True
                    return
            except Exception as error:  # the storage is away; the training itself says so at its next validation
                logger.debug(f"no sign of life: {error}")


def _read_start_time(pid: int) -> str | None:
    """Return the time a process started, which tells it from a later one of the same pid; None where there is none, or
    a zombie: it has ended, and its parent has not asked how."""
    with contextlib.suppress(OSError, IndexError):
        if os.readlink("/proc/self") == str(os.getpid()):  # else it shows the pids outside this container
            state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return None if state in "ZX" else fields[18]
    try:  # the pid alone has to do: without /proc, or where it hides processes of other users
        os.kill(pid, 0)
    except PermissionError:
        return _UNKNOWN
    except OSError:
        return None
    return _UNKNOWN
