"""`--submit`: each worker of a sweep as a job of a cluster, through submitit."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.config.errors import AblateError, ConfigError, Problem, did_you_mean
from ablate.config.formatting import count_noun
from ablate.config.lazy import import_library
from ablate.distributed.launching import SAFE_PATH
from ablate.scheduler.devices import Devices, pick_devices, share_cores
from ablate.scheduler.executors.executor import list_addresses, validate_databases
from ablate.scheduler.preparation import begin_session
from ablate.scheduler.storage import storage_url
from ablate.sweeps.spec.sweep import Sweep

STOPPING = 25.0  # seconds that a worker is given to stop; submitit calls 30 (local) or 90 (Slurm) before the end
_FOREVER = 60 * 24 * 30  # minutes, of a local job without a time limit
_TIMEOUTS = 1000  # how often a job may run out of time and go on
_ONE = ("nodes", "tasks_per_node", "slurm_nodes", "slurm_ntasks_per_node")  # a job is one worker on one machine


@dataclass
class SweepJob:
    """One worker of a sweep, for submitit: picklable, and requeued when it is preempted or reaches its time limit."""

    title: str
    """The sweep, as the storage knows it."""
    folder: str
    """The folder in which it runs, in which the paths of the sweep file are looked up."""
    environment: dict[str, str]
    """The environment variables with the location of the results."""
    devices: int = 1
    """Processes that train each trial together."""
    _started: Future[subprocess.Popen[bytes]] | None = field(default=None, init=False, repr=False)

    def __call__(self) -> int:
        """Run `ablate work` to its end and return 0, or 1 if trials failed. Raises AblateError otherwise."""
        group = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.devices)]
        start = [sys.executable, *(group if self.devices > 1 else [])]
        command = [*start, "-m", "ablate", "work", self.title]
        started: Future[subprocess.Popen[bytes]] = Future()
        self._started = started  # before it starts, as the signal may come then: `checkpoint` waits for it
        with ThreadPoolExecutor(1) as starter:
            starter.submit(self._start, command, {**os.environ, **SAFE_PATH, **self.environment}, started)
            process = started.result()
        try:
            status = process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
        if status not in (0, 1):
            raise AblateError(f"The worker ended with exit status {status}; the reason is in the job's log.")
        return status

    def checkpoint(self) -> Any:
        """Called by submitit, in the middle of `__call__`, before the job is stopped: the worker writes its checkpoint,
        its trial is free for others, and the job is submitted again unchanged."""
        from submitit.helpers import DelayedSubmission

        if self._started is not None:
            _stop(self._started.result().pid)
        return DelayedSubmission(replace(self))

    def _start(self, command: list[str], environment: dict[str, str], started: Future[subprocess.Popen[bytes]]) -> None:
        """Start the worker in its own session, ignoring submitit's signal, which only `checkpoint` handles, and put it
        or the error into `started`."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})  # of this thread; children have it
        try:
            started.set_result(subprocess.Popen(command, cwd=self.folder, env=environment, start_new_session=True))
        except OSError as error:
            started.set_exception(error)


def _stop(pid: int) -> None:
    """Ask a child to stop and wait for it; others that wait for it still get its exit status."""
    deadline = time.monotonic() + STOPPING
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGTERM)
        while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) and time.monotonic() < deadline:
            time.sleep(0.1)


# ---------------------------------------------------------------------------------------------------- submitting


@dataclass(frozen=True)
class Submitted:
    """The submitted jobs; as text, their summary."""

    title: str
    cluster: str
    folder: Path
    """The folder of the logs."""
    jobs: list[Any]
    """The jobs of submitit."""
    storage: str | None
    """The storage as it was given."""

    def __str__(self) -> str:
        ids = [str(job.job_id) for job in self.jobs]
        storage = f" --storage {shlex.quote(tracking.redact(self.storage))}" if self.storage else ""
        stop = "kill -INT" if self.cluster == "local" else "scancel"
        bases = dict.fromkeys(job.partition("_")[0] for job in ids)  # of an array the number before the _
        lines = [
            f"{count_noun(len(ids), 'job')} of {self.title} submitted ({self.cluster}): {' '.join(ids)}",
            f"  logs:    {self.folder}",
            f"  follow:  ablate status {self.title}{storage} --follow",
            f"  report:  ablate report {self.title}{storage}",
        ]
        if self.cluster in ("local", "slurm"):
            lines.append(f"  stop:    {stop} {' '.join(bases)}")
        return "\n".join(lines)


def submit(
    spec: Sweep, words: Mapping[str, Any], *, workers: int = 1, storage: str | None = None, fresh: bool = False
) -> Submitted:
    """Submit `workers` jobs, each a worker of `spec`, and return at once. Errors that would fail every job are found
    before: the studies are opened here. `words` are submitit's parameters, and `cluster`. Raises the errors that
    `sweep` raises before its first trial, and ConfigError for a mistake in `words`.
    """
    cluster, parameters = check_parameters(words, storage)
    url = storage_url(storage)
    own = parameters.get("cpus_per_task") or (share_cores(workers) if cluster == "local" else None)
    queue, _ = begin_session(spec, url, fresh, own)  # without a number, as many threads as the first job has
    title = queue.full_name
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = Path(tempfile.mkdtemp(prefix=f"{title}-{stamp}-", dir=tracking.open_folder("submitted")))  # for us alone
    work = []
    for slot in range(workers):  # a cluster gives each job its GPUs; on this machine they are shared out here
        gpus = pick_devices(slot, workers) if cluster == "local" else Devices(None, 1)
        work.append(SweepJob(title, os.getcwd(), {**list_addresses(url), **gpus.to_environment()}))
    return Submitted(
        title, cluster, folder, _submit_jobs(work, folder, cluster, {"name": title, **parameters}), storage
    )


def _submit_jobs(work: list[SweepJob], folder: Path, cluster: str, parameters: dict[str, Any]) -> list[Any]:
    """Return submitit's jobs."""
    from submitit import AutoExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    timeouts = {f"{cluster}_max_num_timeout": _TIMEOUTS} if cluster in ("local", "slurm") else {}
    unlimited = {"timeout_min": _FOREVER} if cluster == "local" else {}
    try:
        executor = AutoExecutor(folder, cluster, **timeouts)
        executor.update_parameters(**{**unlimited, **parameters})
        with _redirect_output():
            return list(executor.submit_array(work))
    except (AssertionError, NameError, TypeError, ValueError) as error:  # submitit's errors about its parameters
        raise ConfigError([Problem("", tracking.shorten(error))], "--submit") from None
    except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError, OSError) as error:
        raise AblateError(f"The cluster rejected the jobs: {tracking.shorten(error)}") from None


def check_parameters(words: Mapping[str, Any], storage: str | None) -> tuple[str, dict[str, Any]]:
    """Return the cluster and submitit's parameters in `words`. Raises ConfigError with all their problems, and
    AblateError if submitit is not installed."""
    known = import_library("submitit", "cluster").core.plugins.get_executors()
    executors = {name: executor for name, executor in known.items() if name != "debug"}
    cluster = words.get("cluster", "slurm")
    if cluster not in executors:
        message = f"unknown cluster. Accepted: {', '.join(executors)}"
        raise ConfigError([Problem("cluster", message, cluster)], "--submit")
    settings = {word: value for word, value in words.items() if word != "cluster"}
    problems = _validate_cluster(cluster, executors)
    if cluster != "local":
        problems += validate_databases(storage)
    if problems := problems + _validate_settings(cluster, settings, executors):
        raise ConfigError(problems, "--submit")
    return cluster, {word.replace(".", "_"): value for word, value in settings.items()}


def _validate_cluster(cluster: str, executors: Mapping[str, Any]) -> list[Problem]:
    """Return a problem if this machine does not have the commands of the cluster."""
    if executors[cluster].affinity() >= 0 and (cluster != "slurm" or shutil.which("sbatch")):
        return []
    there = [name for name in executors if name != cluster and executors[name].affinity() > 0]
    message = f"{cluster} is not available on this machine: its commands, such as sbatch, are not on the PATH"
    return [Problem("cluster", f"{message}. Available here: {', '.join(there)}")]


def _validate_settings(cluster: str, settings: Mapping[str, Any], executors: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of settings that submitit does not accept, and of missing settings."""
    from submitit import AutoExecutor

    types = {key: kind for key, kind in AutoExecutor._typed_parameters().items() if key not in _ONE}
    special = [f"{cluster}_{name}" for name in sorted(executors[cluster]._valid_parameters())]
    accepted = [*types, *(key for key in special if key not in _ONE and key.removeprefix(f"{cluster}_") not in types)]
    spellings = ["cluster", *(key.replace(f"{cluster}_", f"{cluster}.", 1) for key in accepted)]
    keys = {word: word.replace(".", "_") for word in settings}
    unknown = [word for word, key in keys.items() if key not in accepted]
    problems = []
    for word, value in settings.items():
        kind = types.get(keys[word])
        if word in unknown:
            problems.append(Problem(word, f"unknown key.{did_you_mean(word, spellings)}", value))
        elif kind and not _fits(value, kind):
            problems.append(Problem(word, f"expected {_KINDS[kind]}", value))
    if cluster == "slurm" and not {"timeout_min", "slurm_time"} & set(keys.values()):
        problems.append(Problem("timeout_min", "missing: the minutes that a job may run before it is requeued"))
    if unknown:
        problems.append(Problem("", f"Accepted are, for {cluster}: {', '.join(spellings)}"))
    return problems


_KINDS: dict[type, str] = {
    int: "a whole number of at least 0",
    float: "a number of at least 0",
    bool: "true or false",
    str: "text",
}


def _fits(value: Any, kind: type) -> bool:
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool) and value >= 0
    return isinstance(value, kind)


@contextlib.contextmanager
def _redirect_output() -> Iterator[None]:
    """Children started within this context do not hold this command's output: they outlive it, and a reader of it
    through a pipe would wait for them."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in kept:
            os.dup2(nowhere, number)
        yield
    finally:
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)
        os.close(nowhere)
