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

from ablate import tracking
from ablate.config.errors import AblateError
from ablate.distributed.launching import SAFE_PATH
from ablate.sweeps.devices import THREADS, pick_devices

ERROR = "ablate work: "  # what the message begins with of a worker that ends with exit status 2
CRASHES = 3  # so many workers in a row that end before they took a trial end the sweep
STARTING = 60.0  # seconds within which a worker that ends counts as one that could not start


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
    log: Path
    since: float
    read: int = 0
    """Bytes of the log that were read."""
    is_over: bool = False
    """Whether its end was handled."""


class LocalWorkers:
    """So many workers of a sweep; one that is killed is replaced.

    Args:
        title: the sweep.
        url: its storage.
        count: number of workers.
        threads: threads of each.
    """

    def __init__(self, title: str, url: str, count: int, threads: int) -> None:
        self.title, self.count = title, count
        self._environment = {
            **os.environ,
            **dict.fromkeys(THREADS, str(threads)),
            **SAFE_PATH,
            "ABLATE_STORE": str(tracking.store_path()),
            "ABLATE_STORAGE": url,  # not on the command line, which everybody can read: it may have a password
            "MLFLOW_TRACKING_URI": tracking.tracking_uri(),
        }
        self._crashes = 0
        self._slots: list[_Slot] = []

    def start(self, count: int) -> None:
        """Start the first `count` of them."""
        for number in range(count):
            self._slots.append(self._start(number))

    def _start(self, number: int) -> _Slot:
        log = tracking.open_folder("workers") / f"{self.title}-{number}.log"
        log.unlink(missing_ok=True)
        log.touch(mode=0o600)
        devices = pick_devices(number, self.count).to_environment()
        words = ["work", self.title, "--parent", str(os.getpid())]
        process = start_process(words, {**self._environment, **devices}, log)
        return _Slot(number, process, log, time.monotonic())

    def have_work(self) -> bool:
        """Return whether any of them has not come to its end; one that was killed is to be replaced."""
        return any(not slot.is_over for slot in self._slots)

    def is_running(self) -> bool:
        """Return whether any of them has not ended."""
        return any(slot.process.poll() is None for slot in self._slots)

    def read_lines(self) -> list[str]:
        """Return the lines that they have written since the last call."""
        return [line for slot in self._slots for line in _read_new(slot)]

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
                raise AblateError(_read_error(slot))
            if status in (0, 130):
                continue
            self._crashes = self._crashes + 1 if time.monotonic() - slot.since < STARTING and status > 0 else 0
            if self._crashes >= CRASHES:
                raise AblateError(f"No worker can start: each ends with exit status {status}. See {slot.log}")
            how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
            kept = slot.log.rename(slot.log.with_suffix(f".{slot.process.pid}.log")) if status > 0 else None
            sentences.append(f"Worker {slot.number} {how} and is replaced." + (f" Its output: {kept}" if kept else ""))
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


def _read_new(slot: _Slot) -> list[str]:
    """Return the whole lines that a worker has written since they were last read, but for the error it ends with."""
    with open(slot.log, encoding="utf-8", errors="replace") as file:
        file.seek(slot.read)
        text = file.read()
    whole, newline, _ = text.rpartition("\n")
    slot.read += len((whole + newline).encode())
    lines = [line for line in whole.split("\n") if line]
    ends = [i for i, line in enumerate(lines) if line.startswith(ERROR)]
    return lines[: ends[0]] if ends else lines


def _read_error(slot: _Slot) -> str:
    """Return the message with which a worker ended."""
    text = slot.log.read_text(encoding="utf-8", errors="replace")
    return text.rpartition(ERROR)[2].strip() or f"A worker ended with exit status 2. See {slot.log}"
