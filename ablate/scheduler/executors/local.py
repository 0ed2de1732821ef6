"""Workers as processes of this machine, with their share of its cores and GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.scheduler.devices import pick_devices, share_cores
from ablate.scheduler.executors.executor import Slot, WorkerEnd, WorkerLog, Workers, read_error


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


class LocalWorkers(Workers):
    """So many workers of a sweep on this machine."""

    patience = 8.0

    def start_one(self, number: int, log: WorkerLog) -> Any:
        environment = {**os.environ, **self.environment, **pick_devices(number, self.count).to_environment()}
        return start_process(["work", self.title, "--parent", str(os.getpid())], environment, log.path)

    def has_ended(self, slot: Slot) -> bool:
        return slot.handle.poll() is not None

    def read_end(self, slot: Slot) -> WorkerEnd:
        status = slot.handle.poll()
        return WorkerEnd(128 - status if status < 0 else status, error=read_error(slot.log.path) if status == 2 else "")

    def stop(self) -> None:
        """Ask all to write their checkpoints and end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all at once, and wait until they have."""
        self._signal(signal.SIGKILL)
        for slot in self.slots:
            slot.handle.wait()

    def _signal(self, number: int) -> None:
        for slot in self.slots:
            if slot.handle.poll() is None:
                slot.handle.send_signal(number)


class ThisMachine:
    """The executor of workers on this machine."""

    def pick_threads(self, workers: int) -> int:
        """Return each worker's share of the cores."""
        return share_cores(workers)

    def build_workers(self, title: str, url: str, count: int, threads: int) -> LocalWorkers:
        """Return `count` workers, not yet started."""
        return LocalWorkers(title, url, count, threads)
