"""Workers: processes, forked from a server that has everything imported, that train one trial after another and talk
through a pipe. In a group of ranks the worker is a thread of rank 0, which leads the other ranks.

Messages to the sweep:
    ("started", run_id, updates made before, their validations)
    ("waiting", for what)    ("progress", updates, loss)    ("validation", updates, metrics)
    ("done", result)    ("failed", reason, traceback)    ("away", message: a disk is full or a server is gone)
    ("lost", message: other ranks of the group are gone)
and from it: (experiment, place) to begin; "go" or "prune" in answer to a validation, "stop" at any time. A sweep that
is gone counts as "stop".
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from ablate import tracking
from ablate.config.errors import StoreError
from ablate.config.formatting import format_duration
from ablate.config.logs import log_to_stderr
from ablate.distributed import ranks
from ablate.distributed.launching import SAFE_PATH
from ablate.distributed.ranks import count_cores
from ablate.distributed.slurm import STOPPING
from ablate.estimate.memory import RESERVE
from ablate.experiment.tree import Experiment
from ablate.tracking.connection import set_environ
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import describe_error
from ablate.training.train import train

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

    from ablate.config.merging import Tree

AWAY = 120.0  # seconds that a trial waits for a tracking server before it begins
SHARING = "ABLATE_GPU_SHARING"  # in the environment: jobs of this machine that have the same GPU
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")


def share_cores(workers: int) -> int:
    """Return the threads of one of `workers` parallel processes: OMP_NUM_THREADS, else its share of the cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) else max(1, count_cores() // workers)


class Devices(NamedTuple):
    """The GPUs of a worker."""

    visible: str | None
    """Its CUDA_VISIBLE_DEVICES; None without GPUs."""
    sharing: int
    """Number of workers that share them."""


def pick_devices(slot: int, workers: int) -> Devices:
    """Return the GPUs of the worker `slot` of `workers`: its share of them, or a shared one if there are fewer GPUs
    than workers. They are counted by the driver's library, without CUDA, which this process does not need."""
    import torch

    there, jobs = torch.cuda.device_count(), int(os.environ.get(SHARING, 1))
    known = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = known.split(",") if known else [str(i) for i in range(there)]
    if not there:
        return Devices(None, 1)
    each = len(visible) // workers
    if each:
        return Devices(",".join(visible[slot * each : (slot + 1) * each]), jobs)
    gpu = slot % len(visible)
    return Devices(visible[gpu], jobs * len(range(gpu, workers, len(visible))))


def cap_memory(sharing: int) -> None:
    """Give this process its part of the memory of a GPU that so many share, less what CUDA's context takes: one that
    wants more is out of memory alone, and takes none from the others."""
    import torch

    if sharing == 1 or not torch.cuda.is_available():
        return
    total = torch.cuda.get_device_properties(0).total_memory
    part = total / sharing
    torch.cuda.set_per_process_memory_fraction(max(part - RESERVE, part / 2) / total)


def start_server(threads: int) -> ForkServerContext:
    """Return the context whose processes are forked from a preloaded server; each computes on `threads` threads.

    The server ignores Ctrl-C and SIGTERM, which reach the whole process group: the sweep alone answers them, and the
    server ends when the sweep does.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ablate.sweeps.preload"])
    with set_environ({**dict.fromkeys(_THREADS, str(threads)), **SAFE_PATH}), handle_signals(signal.SIG_IGN):
        from multiprocessing import forkserver

        forkserver.ensure_running()
    return context


class Worker:
    """A process that trains one trial after another; it ends after a failed trial, which may leave it in an unknown
    state.

    Args:
        context: of `start_server`.
        threads: that it computes on.
        devices: its GPUs.
    """

    LIFE = 20
    """Number of trials until it is replaced by a new one, which limits memory leaks of libraries."""

    def __init__(self, context: ForkServerContext, threads: int, devices: Devices) -> None:
        self.connection, theirs = context.Pipe()
        visible = {"CUDA_VISIBLE_DEVICES": devices.visible} if devices.visible else {}
        here = (os.getcwd(), {**os.environ, **visible}, devices.sharing)
        self.process = context.Process(target=run_worker, args=(theirs, threads, *here), daemon=False)
        with hide_main():
            self.process.start()
        theirs.close()
        self.trials = 0

    def begin(self, experiment: Tree, place: Place) -> None:
        """Start the next trial in it. Raises OSError if it has ended."""
        self.connection.send((experiment, place))
        self.trials += 1

    @property
    def lasts(self) -> bool:
        """Whether it may train another trial."""
        return self.trials < self.LIFE

    def dismiss(self) -> None:
        """Let it end when it has no trial."""
        self.connection.close()
        self.process.join(5)

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()

    def describe_end(self) -> str:
        """Describe how it ended, if it ended without a message."""
        self.process.join(5)
        code = self.process.exitcode
        return f"its process was killed by signal {-code}" if code and code < 0 else f"its process exited with {code}"


class GroupWorker:
    """A worker whose trial the ranks of this group train: in a thread, while the main thread goes on with the sweep."""

    lasts = False

    def __init__(self, threads: int) -> None:
        self.connection, self._theirs = multiprocessing.Pipe()
        self.threads = threads

    def begin(self, experiment: Tree, place: Place) -> None:
        """Start the next trial, after an abandoned one has stopped at its next update."""
        for earlier in threading.enumerate():
            if earlier.name == self.__class__.__name__:
                earlier.join()
        arguments = (self._theirs, experiment, place, self.threads)
        threading.Thread(target=_run_and_close, args=arguments, name=self.__class__.__name__, daemon=True).start()

    def dismiss(self) -> None:
        """Close the parent's end of the pipe."""
        self.connection.close()

    def kill(self) -> None:
        """A thread cannot be; it ends with the process."""

    def describe_end(self) -> str:
        """A thread says so itself, unless Python ends."""
        return "its thread ended"


def run_worker(connection: Connection, threads: int, folder: str, environment: Mapping[str, str], sharing: int) -> None:
    """Run a worker's process, in the current directory and the environment of the sweep; `sharing` workers use its
    GPU."""
    signals: list[int] = []
    for number in STOPPING:  # Ctrl-C reaches the sweep, which asks us to stop; another signal may be for us alone
        signal.signal(
            number, signal.SIG_IGN if number == signal.SIGINT else lambda number, frame: signals.append(number)
        )
    os.chdir(folder)  # multiprocessing starts in that of its own import
    os.environ.update({key: value for key, value in environment.items() if key not in _THREADS})
    with log_to_stderr(), contextlib.suppress(EOFError, OSError):  # the sweep needs us no more, or is gone
        while (job := connection.recv()) != "stop" and run_trial(connection, job[0], job[1], threads, signals, sharing):
            _free()


def _free() -> None:
    """Free the memory of the previous trial: Lightning keeps the model in reference cycles, and torch caches a GPU's
    memory."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _run_and_close(connection: Connection, experiment: Tree, place: Place, threads: int) -> None:
    with connection:
        run_trial(connection, experiment, place, threads)


def run_trial(
    connection: Connection,
    experiment: Tree,
    place: Place,
    threads: int,
    signals: Sequence[int] = (),
    sharing: int = 1,
) -> bool:
    """Train `experiment`, report its progress through the pipe, and stop at any of `signals` or when the sweep requests
    it; on a GPU of `sharing` workers, use only its share. Return False if it ended with an error."""
    import torch

    torch.set_num_threads(threads)
    stopped = False

    def send(*message: Any) -> None:
        nonlocal stopped
        try:
            connection.send(message)
        except OSError:
            stopped = True

    def asked_to_stop() -> bool:
        nonlocal stopped
        try:
            if connection.poll():
                stopped = connection.recv() == "stop" or stopped
        except (EOFError, OSError):
            stopped = True
        return stopped or bool(signals)

    def decide(step: int, metrics: Mapping[str, float]) -> bool:
        nonlocal stopped
        send("validation", step, dict(metrics))
        try:
            answer = connection.recv()
        except (EOFError, OSError):
            answer = "stop"
        stopped = stopped or answer == "stop"
        return answer != "prune"

    hooks = Hooks(
        started=lambda run_id, text, before: send("started", run_id, before.updates, dict(before.validations)),
        progress=lambda step, loss: send("progress", step, loss),
        decide=decide,
        asked_to_stop=asked_to_stop,
    )
    try:
        cap_memory(sharing)
        await_store(lambda text: send("waiting", text), asked_to_stop)
        result = train(Experiment.from_mapping(experiment), place, hooks)
        send("done", result)
        return True
    except ranks.Lost as error:
        send("lost", str(error))
    except StoreError as error:
        send("away", str(error))
    except Exception as error:
        send("failed", describe_error(error), tracking.redact(traceback.format_exc()))
    return False


def await_store(note: Callable[[str], None], asked_to_stop: Callable[[], bool]) -> None:
    """Return when MLflow answers; wait up to `AWAY` seconds for an unreachable server. Raises StoreError."""
    deadline = time.monotonic() + AWAY
    while True:
        try:
            tracking.check_store()
            return
        except StoreError as error:
            if not tracking.is_remote() or time.monotonic() > deadline or asked_to_stop():
                raise
            note(f"{error} Waiting for it up to {format_duration(AWAY)}.")
        time.sleep(1)


@contextlib.contextmanager
def handle_signals(handler: Any) -> Iterator[None]:
    """Let `handler` handle Ctrl-C, SIGTERM and SIGUSR1 within this context."""
    try:
        before = {number: signal.signal(number, handler) for number in STOPPING}
    except ValueError:  # not the main thread, as in some notebooks
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def hide_main() -> Iterator[None]:
    """Keep multiprocessing from running the caller's script again in the trial, which does not need it, so that a
    script that calls `sweep(...)` needs no `if __name__ == "__main__"`."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
