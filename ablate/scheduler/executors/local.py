"""Workers as processes of this machine, with their share of its cores and GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.config.errors import AblateError
from ablate.distributed.launching import SAFE_PATH
from ablate.scheduler.devices import THREADS, pick_devices, share_cores
from ablate.scheduler.executors.executor import Crashes, WorkerLog, list_addresses, read_error


def start_process(words: Sequence[str], environment: Mapping[str, str], log: Path) -> Any:
    """Return a process (as of subprocess.Popen) of this program with these arguments, which writes to `log`. It leads a
    session of its own: Ctrl-C reaches the command that started it, which asks it to stop."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "ablate", *words],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


@dataclass
class _Slot:
    """A worker of this machine."""

    number: int
    process: Any
    log: WorkerLog
    since: float
    is_over: bool = False
    """Whether its end was handled."""


class LocalWorkers:
    """So many workers of a sweep on this machine; one that is killed is replaced.

    Args:
        title: the sweep.
        url: its storage.
        count: number of workers.
        threads: threads of each.
    """

    patience = 8.0

    def __init__(self, title: str, url: str, count: int, threads: int) -> None:
        self.title, self.count = title, count
        threaded = dict.fromkeys(THREADS, str(threads))
        self._environment = {**os.environ, **threaded, **SAFE_PATH, **list_addresses(url)}
        self._crashes = Crashes()
        self._slots: list[_Slot] = []

    def start(self, count: int) -> None:
        """Start the first `count` of them."""
        for number in range(count):
            self._slots.append(self._start(number))

    def _start(self, number: int) -> _Slot:
        log = WorkerLog(self.title, number)
        devices = pick_devices(number, self.count).to_environment()
        words = ["work", self.title, "--parent", str(os.getpid())]
        process = start_process(words, {**self._environment, **devices}, log.path)
        return _Slot(number, process, log, time.monotonic())

    def have_work(self) -> bool:
        """Return whether any of them has not come to its end; one that was killed is to be replaced."""
        return any(not slot.is_over for slot in self._slots)

    def is_running(self) -> bool:
        """Return whether any of them has not ended."""
        return any(slot.process.poll() is None for slot in self._slots)

    def read_lines(self) -> list[str]:
        """Return the lines that they have written since the last call."""
        return [line for slot in self._slots for line in slot.log.read_lines()]

    def replace_killed(self) -> list[str]:
        """Replace those that were killed or crashed; return a sentence for each. Raises AblateError with the message of
        one that ended with an error, or if none can start."""
        sentences = []
        for i, slot in enumerate(self._slots):
            status = slot.process.poll()
            if status is None or slot.is_over:
                continue
            slot.is_over = True
            if status == 2:
                raise AblateError(read_error(slot.log.path))
            if status in (0, 130):
                continue
            if status < 0:
                self._crashes.reset()
                sentences.append(f"Worker {slot.number} was killed by signal {-status} and is replaced.")
            else:
                self._crashes.add(time.monotonic() - slot.since, f"ends with exit status {status}", slot.log.path)
                kept = slot.log.keep(slot.process.pid)
                sentences.append(
                    f"Worker {slot.number} ended with exit status {status} and is replaced. Its output: {kept}"
                )
            self._slots[i] = self._start(slot.number)
        return sentences

    def stop(self) -> None:
        """Ask all to write their checkpoints and end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all at once, and wait until they have."""
        self._signal(signal.SIGKILL)
        for slot in self._slots:
            slot.process.wait()

    def _signal(self, number: int) -> None:
        for slot in self._slots:
            if slot.process.poll() is None:
                slot.process.send_signal(number)


class ThisMachine:
    """The executor of workers on this machine."""

    def pick_threads(self, workers: int) -> int:
        """Return each worker's share of the cores."""
        return share_cores(workers)

    def build_workers(self, title: str, url: str, count: int, threads: int) -> LocalWorkers:
        """Return `count` workers, not yet started."""
        return LocalWorkers(title, url, count, threads)
