"""The interface of a place where the workers of a sweep run, and the parts that all places share: addresses, logs, and
the rule by which workers are no longer replaced."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ablate import tracking
from ablate.config.errors import AblateError, Problem, StoreError
from ablate.distributed.launching import SAFE_PATH
from ablate.scheduler.devices import THREADS
from ablate.scheduler.storage import storage_url


def list_addresses(url: str) -> dict[str, str]:
    """Return the environment variables with the location of the results; `url` is that of the storage. It may have a
    password, so it is never an argument of a command, which everybody can read."""
    return {
        "ABLATE_STORE": str(tracking.store_path()),
        "ABLATE_STORAGE": url,
        "MLFLOW_TRACKING_URI": tracking.tracking_uri(),
    }


def validate_databases(storage: str | None) -> list[Problem]:
    """Return a problem for each database that workers on several machines cannot share."""
    message = "several machines cannot share a SQLite file. Use a database server, such as"
    problems = []
    if (url := storage_url(storage)).startswith("sqlite"):
        problems.append(
            Problem(
                "--storage",
                f"{message} postgresql://me@host/ablate, or journal:///FILE on a file system that they share",
                tracking.redact(url),
            )
        )
    if (uri := tracking.tracking_uri()).startswith("sqlite"):
        problems.append(Problem("MLFLOW_TRACKING_URI", f"{message} http://host:5000", tracking.redact(uri)))
    return problems


ERROR = "ablate work: "  # the beginning of the message of a worker that ends with exit status 2


_LEAST = 2**18  # bytes without which neither a database nor a message can be written


class WorkerLog:
    """The file with the output of the worker `number` of the sweep `title`, emptied."""

    def __init__(self, title: str, number: int) -> None:
        self.path = tracking.open_folder("workers") / f"{title}-{number}.log"
        self.path.unlink(missing_ok=True)
        self.path.touch(mode=0o600)
        self._read = 0  # bytes

    def read_lines(self) -> list[str]:
        """Return the whole lines that were written since the last call, except for the error that a worker ends
        with."""
        with open(self.path, "rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole + newline)
        lines = [line for line in whole.decode(errors="replace").split("\n") if line]
        ends = [i for i, line in enumerate(lines) if line.startswith(ERROR)]
        return lines[: ends[0]] if ends else lines


def check_space(log: Path) -> None:
    """Raise StoreError if the disk of `log` is full, which a worker cannot write there."""
    if shutil.disk_usage(log.parent).free < _LEAST:
        raise StoreError(
            f"The disk of {log.parent} is full. Free some space. Finished trials are safe, and the same command "
            "continues."
        )


def read_error(log: str | Path) -> str:
    """Return the message with which the worker that wrote to `log` ended."""
    check_space(Path(log))
    text = Path(log).read_text(encoding="utf-8", errors="replace")
    return text.rpartition(ERROR)[2].strip() or f"A worker ended with exit status 2. See {log}"


MOST = 3  # so many workers in a row that end before they took a trial end the sweep
STARTING = 60.0  # seconds within which a worker that ends counts as one that could not start


class Crashes:
    """Counts the workers in a row that ended before they took a trial."""

    def __init__(self) -> None:
        self._count = 0

    def reset(self) -> None:
        """Begin to count anew: a worker was killed, or worked for a while."""
        self._count = 0

    def add(self, seconds: float, how: str, log: Path) -> None:
        """Count a worker that crashed `seconds` after it was started. Raises AblateError if none can start: `how` says
        how each ends; or if the disk is full."""
        check_space(log)
        self._count = self._count + 1 if seconds < STARTING else 0
        if self._count >= MOST:
            raise AblateError(f"No worker can start: each {how}. See {log}")


@dataclass(frozen=True)
class WorkerEnd:
    """The end of a worker."""

    status: int
    """Its exit status; 128 + n where signal n has killed it."""
    node: str = ""
    """Where it ran; "": on this machine."""
    error: str = ""
    """The message of one that ended with exit status 2."""


@dataclass
class Slot:
    """A worker of a sweep, wherever it runs."""

    number: int
    handle: Any
    """Its handle in its place."""
    log: WorkerLog
    since: float
    is_over: bool = False
    """Whether its end was handled."""


class Workers:
    """The workers of one sweep; one that is killed or crashes is replaced. A subclass says how one is started and
    stopped in its place, and how it ended.

    Args:
        title: the sweep.
        url: its storage.
        count: number of workers.
        threads: threads of each.
    """

    patience: float
    """Seconds that they are given to write their checkpoints after Ctrl-C."""

    def __init__(self, title: str, url: str, count: int, threads: int) -> None:
        self.title, self.count = title, count
        self.environment = {**dict.fromkeys(THREADS, str(threads)), **SAFE_PATH, **list_addresses(url)}
        self.crashes = Crashes()
        self.slots: list[Slot] = []

    def start_one(self, number: int, log: WorkerLog) -> Any:
        """Start a worker, which writes to `log`, and return its handle."""
        raise NotImplementedError

    def has_ended(self, slot: Slot) -> bool:
        """Return whether a worker has ended."""
        raise NotImplementedError

    def read_end(self, slot: Slot) -> WorkerEnd:
        """Return how one ended."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ask all to write their checkpoints and end."""
        raise NotImplementedError

    def kill(self) -> None:
        """End all at once."""
        raise NotImplementedError

    def start(self, count: int) -> None:
        """Start the first `count` of them."""
        for number in range(count):  # one by one, so that those before one that cannot start can be stopped
            self.slots.append(self._start(number, WorkerLog(self.title, number)))

    def _start(self, number: int, log: WorkerLog) -> Slot:
        return Slot(number, self.start_one(number, log), log, time.monotonic())

    def have_work(self) -> bool:
        """Return whether any of them has not come to its end; one that was killed is to be replaced."""
        return any(not slot.is_over for slot in self.slots)

    def is_running(self) -> bool:
        """Return whether any of them has not ended."""
        return any(not self.has_ended(slot) for slot in self.slots)

    def read_lines(self) -> list[str]:
        """Return the lines that they have written since the last call."""
        return [line for slot in self.slots for line in slot.log.read_lines()]

    def replace_killed(self) -> list[str]:
        """Replace those that were killed or crashed; return a sentence for each. Raises AblateError with the message of
        one that ended with an error, or if none can start."""
        sentences = []
        for i, slot in enumerate(self.slots):
            if slot.is_over or not self.has_ended(slot):
                continue
            slot.is_over, end = True, self.read_end(slot)
            if end.status == 2:
                raise AblateError(end.error)
            if end.status not in (0, 130):
                sentences.append(self.describe_crash(slot, end))
                self.slots[i] = self._start(slot.number, slot.log)
        return sentences

    def describe_crash(self, slot: Slot, end: WorkerEnd) -> str:
        """Return a sentence on a worker that was killed or crashed. Raises AblateError if none can start."""
        where = f" on {end.node}" if end.node else ""
        if end.status > 128:
            self.crashes.reset()
            return f"Worker {slot.number} was killed by signal {end.status - 128}{where} and is replaced."
        last = f", the last{where}" if where else ""
        self.crashes.add(time.monotonic() - slot.since, f"ends with exit status {end.status}{last}", slot.log.path)
        how = f"ended with exit status {end.status}{where}"
        return f"Worker {slot.number} {how} and is replaced. Its output: {slot.log.path}"


class Executor(Protocol):
    """Where workers run."""

    def pick_threads(self, workers: int) -> int:
        """Return the threads that each of so many workers computes on, unless the sweep began with another number."""

    def build_workers(self, title: str, url: str, count: int, threads: int) -> Workers:
        """Return `count` workers, not yet started, of the sweep `title` in the storage at `url`."""
