"""A connection to a Ray cluster, what its nodes have, and its errors as sentences."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ablate.config.errors import AblateError, ConfigError, Problem, StoreError
from ablate.config.lazy import import_library
from ablate.scheduler.executors.addresses import validate_databases
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
