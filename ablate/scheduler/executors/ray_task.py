"""The work on a node of a Ray cluster: a task that starts `ablate work` there, and waits for it.

Ray ends a task in many ways: it is cancelled, the command that submitted it has ended, memory is short. In all of them
the worker lives on for the seconds that it needs to write its checkpoint: it is not a child of Ray's process, since Ray
would kill it with that, and stops when that process has ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

from ablate.scheduler.executors.executor import WorkerEnd, read_error

STOPPING = 25.0  # seconds that a worker is given to stop
POLL = 0.2  # seconds; Ray interrupts Python, and not a call that waits longer
# A shell between Ray's process and the worker: it passes SIGTERM on, returns the worker's exit status, says nothing.
# A child that is not the worker yet would lose an early SIGTERM: hence the second.
_KEEPER = """
exec 3>&2 2>/dev/null
trap 'stopped=early' TERM
"$@" 2>&3 3>&- &
trap 'stopped=1; kill $!' TERM
[ "$stopped" = early ] && { sleep 1; kill $!; }
wait $!; status=$?
[ "$stopped" = 1 ] && { wait $!; status=$?; }
exit $status
"""


@dataclass(frozen=True)
class WorkerOrder:
    """The order that a task carries out, on any node."""

    title: str
    """The sweep."""
    folder: str
    """The folder in which it runs, in which the paths of the sweep file are looked up."""
    environment: dict[str, str]
    """Environment variables that it needs beside those of the node."""
    log: str
    """The file that it writes to."""
    version: str
    """The version of Ablate where the sweep was started."""
    host: str | None
    """The only machine that it may run on; None: any."""


def run_worker(order: WorkerOrder) -> WorkerEnd:
    """Run `ablate work` to its end and return how it ended. If this task is cancelled, it returns when the worker has
    written its checkpoint."""
    node = socket.gethostname()
    if problem := _find_problem(order, node):
        return WorkerEnd(2, node, problem)
    with contextlib.ExitStack() as start:
        start.enter_context(_hold_interrupts())
        try:
            process = _start(order)
        except OSError as error:
            return WorkerEnd(2, node, f"No worker can start on {node}: {error}.")
        try:
            start.close()  # raises an interrupt that came in the meantime
            status = _wait(process)
        finally:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOPPING)
    return WorkerEnd(status, node, f"On {node}: {read_error(order.log)}" if status == 2 else "")


def read_version() -> str:
    """Return the version of Ablate of this process."""
    return str(import_module("ablate").__version__)  # by its name: the package itself stands above all layers


def _find_problem(order: WorkerOrder, node: str) -> str:
    """Return a sentence on what keeps this node from running the worker; '' if nothing does."""
    if order.version != (own := read_version()):
        return f"{node} has Ablate {own}, and the command is that of {order.version}. Install one version on all nodes."
    if order.host not in (None, node):
        return (
            f"{node} cannot reach the databases, which are on {order.host} alone. Use databases that both reach: "
            "--storage and MLFLOW_TRACKING_URI."
        )
    if not os.path.isdir(order.folder):
        return (
            f"{node} has no folder {order.folder}, in which the paths of the sweep file are looked up. Start the "
            "command in a folder that all nodes share."
        )
    return ""


@contextlib.contextmanager
def _hold_interrupts() -> Iterator[None]:
    """Delay an interrupt, by which Ray cancels a task, to the end of this block."""
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held and callable(before):
        before(signal.SIGINT, None)


def _start(order: WorkerOrder) -> subprocess.Popen[bytes]:
    """Start the worker, in a session of its own: what ends this process does not reach it."""
    os.makedirs(os.path.dirname(order.log), mode=0o700, exist_ok=True)
    worker = [sys.executable, "-m", "ablate", "work", order.title, "--parent", str(os.getpid())]
    with open(order.log, "ab") as output:
        return subprocess.Popen(
            ["sh", "-c", _KEEPER, "sh", *worker],
            cwd=order.folder,
            env={**os.environ, **order.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait in short steps until the process has ended, and return its exit status."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(POLL)
