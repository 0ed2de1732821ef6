"""The options of `ablate sweep` that say where its workers run."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ablate.cli.arguments import COMMAND_LINE, parse_above_zero
from ablate.config.errors import ConfigError, Problem
from ablate.config.lazy import postpone_imports
from ablate.distributed import ranks

if TYPE_CHECKING:
    from ablate.scheduler.executors.executor import Executor

with postpone_imports():
    from ablate.scheduler.executors import ray as ray_executor

_EXECUTOR = "where workers run: this machine, or tasks of a Ray cluster (default: local; jobs of Slurm: --submit)"
_ADDRESS = (
    "of the Ray cluster: HOST:PORT on one of its nodes, ray://HOST:PORT elsewhere, or auto, the cluster of this "
    "machine (default: RAY_ADDRESS, else auto)"
)
_CPUS = "CPUs of each worker on Ray, and threads of a trial (default: 1)"
_GPUS = (
    "GPUs of each worker on Ray: 1, 0, or a part, such as 0.25 for four workers on each (default: 1 if there are any)"
)


def add_executor(parser: argparse.ArgumentParser) -> None:
    """Add --executor and the options of each executor."""
    parser.add_argument("--executor", choices=("local", "ray"), default="local", help=_EXECUTOR)
    parser.add_argument("--address", metavar="ADDRESS", help=_ADDRESS)
    parser.add_argument("--cpus-per-worker", type=parse_above_zero, metavar="X", help=_CPUS)
    parser.add_argument("--gpus-per-worker", type=parse_gpus, metavar="Y", help=_GPUS)


def parse_gpus(text: str) -> float:
    """Return a number from 0 to 1."""
    try:
        gpus = float(text)
    except ValueError:
        gpus = -1.0
    if not 0 <= gpus <= 1:
        reason = "a worker is one process, which trains on one GPU"
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1, given {text}: {reason}")
    return gpus


def check_executor(options: argparse.Namespace) -> None:
    """Raise ConfigError with all options that cannot be combined."""
    problems = []
    if options.executor == "local":
        for name in ("address", "cpus_per_worker", "gpus_per_worker"):
            if (value := getattr(options, name)) is not None:
                problems.append(Problem(f"--{name.replace('_', '-')}", "needs --executor ray", value))
    else:
        if options.submit:
            problems.append(Problem("--submit", "cannot be combined with --executor ray: choose one"))
        if options.workers_per_gpu:
            text = "cannot be combined with --executor ray: give --gpus-per-worker, such as 0.25, and --workers"
            problems.append(Problem("--workers-per-gpu", text))
        if ranks.world_size() > 1:
            problems.append(Problem("--executor", "ray cannot be used in a group of torchrun: omit torchrun"))
    if problems:
        raise ConfigError(problems, COMMAND_LINE)


@contextlib.contextmanager
def open_executor(options: argparse.Namespace) -> Iterator[Executor | None]:
    """Return where workers run; None: on this machine."""
    if options.executor == "local":
        yield None
        return
    with ray_executor.open_cluster(
        options.address, options.cpus_per_worker, options.gpus_per_worker, options.storage
    ) as cluster:
        yield cluster
