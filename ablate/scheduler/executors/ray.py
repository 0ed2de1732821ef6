"""Workers as tasks of a Ray cluster, with their share of its CPUs and GPUs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ablate import tracking
from ablate.config.errors import AblateError, ConfigError, Problem, StoreError
from ablate.config.formatting import count_noun
from ablate.config.lazy import import_library
from ablate.scheduler.devices import SHARING
from ablate.scheduler.executors.executor import Slot, WorkerEnd, WorkerLog, Workers, validate_databases
from ablate.scheduler.executors.ray_task import STOPPING, WorkerOrder, read_version, run_worker
from ablate.tracking import shorten

ANSWER = 30.0  # seconds within which something must listen at the address
START = 60.0  # seconds within which it must be connected: for ray:// the cluster starts a process first
_ADDRESS = re.compile(r"(?:ray://)?([\w.-]+|\[[\da-fA-F:]+\]):(\d{1,5})")
_ACCEPTED = (
    "Accepted: HOST:PORT on a node of the cluster, ray://HOST:PORT elsewhere, auto for the cluster of this machine"
)


@contextlib.contextmanager
def connect(address: str | None) -> Iterator[None]:
    """Be connected to the cluster at `address` within this context; without one, to that of RAY_ADDRESS or of this
    machine. Raises AblateError if it does not answer or has other versions, or Ray is not installed."""
    ray = import_library("ray", "ray")
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    _probe(address)
    _connect_in_time(address)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # a cluster that is gone
            ray.shutdown()


def _probe(address: str) -> None:
    """Raise AblateError if nothing listens at `address`: Ray itself would try for minutes."""
    if address == "auto":
        return
    match = _ADDRESS.fullmatch(address)
    if match is None:
        hint = " An http address is that of `ray job submit`, which runs this command." if "http" in address else ""
        raise AblateError(f"--address {address} is not an address of a Ray cluster. {_ACCEPTED}.{hint}")
    try:
        socket.create_connection((match[1].strip("[]"), int(match[2])), timeout=ANSWER).close()
    except (OSError, OverflowError) as error:
        raise AblateError(f"No Ray cluster answers at {address}: {error}. {_ACCEPTED}.") from None


def _connect_in_time(address: str) -> None:
    """Connect to `address`. Raises AblateError if that takes longer than `START`, or fails."""
    import ray

    failures: list[BaseException] = []

    def initialise() -> None:
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except BaseException as error:
            failures.append(error)

    # in a thread, which can be left where it hangs, and in which Ray leaves the handlers of signals alone
    thread = threading.Thread(target=initialise, name="ray", daemon=True)
    thread.start()
    thread.join(START)
    if thread.is_alive():
        raise AblateError(
            f"What listens at {address} is no Ray cluster, or does not answer within {START:.0f} seconds."
        )
    if failures:
        raise AblateError(_describe_failure(address, failures[0]))


def _describe_failure(address: str, error: BaseException) -> str:
    """Return the message for an error of Ray while it connects."""
    if "Version mismatch" in str(error):
        versions = re.findall(r"(?:Ray|Python): (\S+)", str(error))
        pairs = [f"Ray {ray} with Python {python}" for ray, python in zip(versions[::2], versions[1::2], strict=True)]
        return f"The cluster has {' and this command has '.join(pairs)}. Install the same versions here."
    if address == "auto":
        return (
            f"No Ray cluster runs on this machine. Start one with `ray start --head`, or give --address. {_ACCEPTED}."
        )
    return f"No connection to the Ray cluster at {address}: {shorten(error)}"


@contextlib.contextmanager
def explain_errors() -> Iterator[None]:
    """Raise StoreError for a cluster that cannot be reached any more."""
    import ray

    try:
        yield
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise StoreError(
            f"The connection to the Ray cluster is lost: {shorten(error)}. Finished trials are safe; the same command "
            "continues."
        ) from None


def list_nodes() -> list[Mapping[str, Any]]:
    """Return the nodes of the cluster that are alive, as Ray describes them."""
    import ray

    with explain_errors():
        return [node for node in ray.nodes() if node["Alive"]]


def count_room(nodes: Sequence[Mapping[str, Any]], cpus: float, gpus: float) -> int:
    """Return how many workers with so many CPUs and GPUs the nodes have room for, if nothing else runs there."""
    return sum(_count_room(node["Resources"], cpus, gpus) for node in nodes)


def _count_room(resources: Mapping[str, float], cpus: float, gpus: float) -> int:
    by_cpu = int(resources.get("CPU", 0) / cpus + 1e-6)
    if not gpus:
        return by_cpu
    return min(by_cpu, int(resources.get("GPU", 0)) * int(1 / gpus + 1e-6))


def check_request(nodes: Sequence[Mapping[str, Any]], cpus: float, gpus: float, storage: str | None) -> None:
    """Raise ConfigError with all that keeps workers with so many CPUs and GPUs from running on these nodes."""
    most = {kind: max((node["Resources"].get(kind, 0) for node in nodes), default=0) for kind in ("CPU", "GPU")}
    hosts = {node["NodeManagerHostname"] for node in nodes}
    problems = [] if hosts == {socket.gethostname()} else validate_databases(storage)
    for option, kind, wanted in (("--cpus-per-worker", "CPU", cpus), ("--gpus-per-worker", "GPU", gpus)):
        if wanted > most[kind]:
            text = f"no node of the cluster has so many {kind}s: the most on one is {most[kind]:g}"
            problems.append(Problem(option, f"{text}, not {wanted:g}"))
    if not problems and not count_room(nodes, cpus, gpus):
        text = f"no node of the cluster has {cpus:g} CPUs and {gpus:g} GPUs together"
        problems.append(Problem("--cpus-per-worker", text))
    if problems:
        raise ConfigError(problems, "--executor ray")


RETRIES = 3  # how often Ray itself starts a worker again whose node was lost; after that it counts as one that crashed
LOST = -1  # the status of such a worker
LOOK = 5.0  # seconds between two looks at the nodes


class RayCluster:
    """The executor of workers on the Ray cluster that this process is connected to.

    Args:
        cpus: CPUs of each worker.
        gpus: GPUs of each; a part of 1 where several share one.
    """

    def __init__(self, cpus: float, gpus: float) -> None:
        self.cpus, self.gpus = cpus, gpus

    def pick_threads(self, workers: int) -> int:
        """Return the CPUs of each worker."""
        return max(1, int(self.cpus))

    def build_workers(self, title: str, url: str, count: int, threads: int) -> RayWorkers:
        """Return `count` workers, not yet started."""
        return RayWorkers(self, title, url, count, threads)

    def submit(self, order: WorkerOrder) -> Any:
        """Return Ray's reference to a task that carries out `order`, on any node."""
        import ray

        with explain_errors():
            task = ray.remote(run_worker).options(
                num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES, name=f"ablate work {order.title}"
            )
            return task.remote(order)


@contextmanager
def open_cluster(
    address: str | None, cpus: float | None, gpus: float | None, storage: str | None
) -> Iterator[RayCluster]:
    """Return the cluster at `address`, as of `connect`, as an executor; the connection ends with this context. A worker
    has one CPU and, in a cluster with GPUs, one GPU, unless that is given. Raises ConfigError for workers that no node
    has room for, and for databases that the nodes cannot share."""
    with connect(address):
        nodes = list_nodes()
        has_gpus = any(node["Resources"].get("GPU") for node in nodes)
        cluster = RayCluster(cpus or 1.0, float(has_gpus) if gpus is None else gpus)
        check_request(nodes, cluster.cpus, cluster.gpus, storage)
        yield cluster


class RayWorkers(Workers):
    """So many workers of a sweep, each a task of Ray. Ray starts one again whose node was lost; one that crashed is
    replaced here."""

    patience = STOPPING + 5.0

    def __init__(self, cluster: RayCluster, title: str, url: str, count: int, threads: int) -> None:
        super().__init__(title, url, count, threads)
        self.cluster = cluster
        if 0 < cluster.gpus < 1:
            self.environment[SHARING] = str(int(1 / cluster.gpus + 1e-6))
        self._host = socket.gethostname() if validate_databases(url) else None
        self._is_done = False  # a worker has found nothing left to do
        self._nodes = _Nodes()

    def start_one(self, number: int, log: WorkerLog) -> Any:
        order = WorkerOrder(self.title, os.getcwd(), self.environment, str(log.path), read_version(), self._host)
        return self.cluster.submit(order)

    def has_ended(self, slot: Slot) -> bool:
        return _has_ended(slot)

    def read_end(self, slot: Slot) -> WorkerEnd:
        end = _read_end(slot)
        self._is_done = self._is_done or end.status == 0
        return end

    def have_work(self) -> bool:
        """Return whether any of them has not come to its end, and none has found that the sweep is done: then those
        that wait for room are not needed."""
        return not self._is_done and super().have_work()

    def replace_killed(self) -> list[str]:
        """Replace those that crashed, and return a sentence for each and for each node that was lost."""
        return [*self._nodes.describe_changes(len(self.slots), self.cluster), *super().replace_killed()]

    def describe_crash(self, slot: Slot, end: WorkerEnd) -> str:
        if end.status != LOST:
            return super().describe_crash(slot, end)
        how = "was lost with its node or its process of Ray"
        self.crashes.add(time.monotonic() - slot.since, how, slot.log.path)
        return f"Worker {slot.number} was lost {RETRIES + 1} times ({end.error}) and is replaced."

    def stop(self) -> None:
        """Cancel the tasks: those that run ask their workers to write checkpoints and end."""
        self._cancel(force=False)

    def kill(self) -> None:
        """End all tasks at once. Workers that are still there write their checkpoints and end by themselves."""
        self._cancel(force=True)

    def _cancel(self, force: bool) -> None:
        import ray

        for slot in self.slots:
            if not _has_ended(slot):
                with explain_errors():
                    ray.cancel(slot.handle, force=force)


def _has_ended(slot: Slot) -> bool:
    """Return whether Ray has come to the end of a task, retries included."""
    import ray

    with explain_errors():
        return bool(ray.wait([slot.handle], timeout=0)[0])


def _read_end(slot: Slot) -> WorkerEnd:
    """Return how a worker ended. Raises AblateError if its task could not be run."""
    import ray

    try:
        end: WorkerEnd = ray.get(slot.handle)
        return end
    except ray.exceptions.TaskCancelledError:
        return WorkerEnd(130, "")
    except ray.exceptions.RayTaskError as error:
        text = tracking.shorten(getattr(error, "cause", None) or error)
        raise AblateError(
            f"A node of the cluster cannot run Ablate: {text}. Install Ablate {read_version()} on all nodes."
        ) from None
    except ray.exceptions.RayError as error:
        return WorkerEnd(LOST, "", tracking.shorten(error))


class _Nodes:
    """The nodes of the cluster, looked at every few seconds."""

    def __init__(self) -> None:
        self._names: dict[str, str] | None = None  # of those that were alive
        self._next = 0.0

    def describe_changes(self, workers: int, cluster: RayCluster) -> list[str]:
        """Return sentences on nodes that were lost since the last call and, the first time and after that, on room that
        lacks for so many workers."""
        if time.monotonic() < self._next:
            return []
        nodes = list_nodes()
        self._next = time.monotonic() + LOOK
        names = {node["NodeID"]: f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in nodes}
        before, self._names = self._names, names
        lost = [name for node, name in (before or {}).items() if node not in names]
        sentences = [f"The node {name} was lost. Ray starts its workers again where there is room." for name in lost]
        room = count_room(nodes, cluster.cpus, cluster.gpus)
        if (lost or before is None) and room < workers:
            sentences.append(f"The cluster has room for {room} of {count_noun(workers, 'worker')}; the others wait.")
        return sentences
