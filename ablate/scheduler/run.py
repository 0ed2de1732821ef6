"""Running a sweep: preparing it, starting its workers, and showing what they do."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ablate import tracking
from ablate.config.errors import AblateError, StoreError, SweepError
from ablate.config.logs import log_where_unheard, open_console, print_wrapped
from ablate.distributed import ranks
from ablate.distributed.signals import handle_signals
from ablate.scheduler.executors.executor import Executor, Workers
from ablate.scheduler.executors.local import ThisMachine
from ablate.scheduler.preparation import begin_session, check_workers
from ablate.scheduler.progress import Display, describe_sweep
from ablate.scheduler.queue import Queue
from ablate.scheduler.status import Follower
from ablate.scheduler.storage import do_locked, find_file, read_sweep, storage_url, translate_storage_errors
from ablate.scheduler.studies import end_run
from ablate.scheduler.worker import SPOILED, STOPPED, Worker
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.stages import count_runs
from ablate.training.runs import copy_run, measure_checkpoint

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger(__name__)

CLOSED = "closed"  # of the study of the first arm: ended runs when the results were last written to MLflow
POLL = 0.2  # seconds between two looks at the worker processes
LINGER = 60.0  # seconds that a worker has to end by itself once all runs have ended


def sweep(
    spec: Sweep,
    *,
    workers: int = 1,
    storage: str | None = None,
    fresh: bool = False,
    console: Console | None = None,
    progress: bool = True,
    executor: Executor | None = None,
) -> SweepRecord:
    """Run `spec` until every arm has its trials, and return what the storage then holds. Run again, it continues.

    Args:
        spec: the sweep.
        workers: trials at a time; each computes on its share of the cores.
        storage: URL of the Optuna storage; by default the SQLite database under `mlruns/`.
        fresh: start anew, and keep the old trials as an earlier generation.
        console: where progress is shown; by default stdout.
        progress: whether it is shown what runs, each trial that begins or ends, the verdict so far and the time that is
            left: in a live table on a terminal, in lines in a notebook, a file or a pipe.
        executor: where its workers run; by default on this machine.

    Raises SweepError where `spec` differs from the file that its studies were started with, DataError and StoreError
    before any trial runs, KeyboardInterrupt after Ctrl-C, when everything that ran is requeued.
    """
    if not isinstance(spec, Sweep):
        raise TypeError(f"give a Sweep, such as ablate.Sweep.load('my-sweep.yaml'), not a {type(spec).__name__}")
    executor = executor or ThisMachine()
    console = (console or open_console()) if progress else open_console(shown=False)
    print_wrapped(console, describe_sweep(spec, workers))
    warnings.filterwarnings("ignore", module="optuna")
    if workers > 1 and ranks.world_size() > 1:
        raise SweepError(
            f"--workers {workers} in a group of {ranks.world_size()} ranks: a group trains one trial at a time. Omit "
            "it, and start more groups on the same storage."
        )
    check_workers(spec, workers)
    tracking.open_store()  # before anything is prepared
    url = storage_url(storage)
    display = Display(console, spec.objective.metric, workers)
    if (file := find_file(tracking.tracking_uri())) and not file.exists():
        display.note(f"Making the database {file}: this takes seconds.")
    with log_where_unheard(), translate_storage_errors(url):
        wanted = executor.pick_threads(max(workers, ranks.local_size()))
        queue, threads = begin_session(spec, url, fresh, wanted, display.note)
        name = queue.full_name
        follower = Follower(name, queue.storage, display)
        if queue.must_wait():
            stop = _Stop()
            with display, handle_signals(stop.note):
                if ranks.world_size() > 1:
                    _work_in_group(Worker(name, url), follower, stop)
                else:
                    _run_workers(executor.build_workers(name, url, workers, threads), follower, stop)
            if stop.signals:
                for run in queue.list_orphans():  # of workers that were killed
                    with contextlib.suppress(StoreError):
                        end_run(run.run_id, "interrupted", "stopped")
                raise KeyboardInterrupt(*stop.signals)
        close(queue)
    return read_sweep(name, url)


class _Stop:
    """The signals that asked to stop."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.presses = 0
        """How often Ctrl-C was pressed; another signal counts once, as `timeout` sends SIGTERM to us and our group."""

    def note(self, number: int, frame: object) -> None:
        self.signals.append(number)
        self.presses += number == signal.SIGINT or not self.presses


def _run_workers(workers: Workers, follower: Follower, stop: _Stop) -> None:
    """Run `workers` until the sweep is done or a signal comes, and show what they do."""
    done, total = count_runs(follower.record)
    try:
        workers.start(min(workers.count, max(1, total - done)))
        over: float | None = None  # since when nothing is left to do
        while workers.have_work() and not stop.signals:
            _show(workers, follower, workers.replace_killed())
            over = (over or time.monotonic()) if follower.is_over() else None
            if over and time.monotonic() - over > LINGER:
                follower.display.note("All is done. A worker that does not end is stopped.")
                break
            time.sleep(POLL)
    finally:
        workers.stop()
        deadline = time.monotonic() + workers.patience
        while workers.is_running() and time.monotonic() < deadline and stop.presses < 2:
            time.sleep(POLL)
        workers.kill()
        with contextlib.suppress(StoreError):
            _show(workers, follower, [])
            follower.close()


def _show(workers: Workers, follower: Follower, sentences: Sequence[str]) -> None:
    for line in [*workers.read_lines(), *sentences]:
        follower.display.note(line)
    follower.look_if_due()


def _work_in_group(worker: Worker, follower: Follower, stop: _Stop) -> None:
    """Let the ranks of this group train the trials, and show their progress meanwhile."""
    with _follow_aside(follower):
        while (end := worker.run()) == SPOILED:
            pass
    if end == STOPPED:
        stop.signals += worker.signals


@contextlib.contextmanager
def _follow_aside(follower: Follower) -> Iterator[None]:
    """Show what happens, in a thread, within this context."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(POLL):
            with contextlib.suppress(StoreError):  # the worker says so itself
                follower.look_if_due()

    thread = threading.Thread(target=follow, name="display", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(StoreError):
            follower.close()


def close(queue: Queue) -> bool:
    """Write the results to the runs of the arms in MLflow; return False if that was done already since the last run
    ended."""
    queue.studies.refresh()
    record = do_locked(queue.storage, queue.studies.read)
    first, ended = record.arms[0], record.runs.finished
    if queue.read_notes(first).get(CLOSED) == ended:
        return False
    for arm in record.arms:
        _close_parent(record, arm)
    queue.write_note(first, CLOSED, ended)  # afterwards: a process that is killed before leaves this to the next
    return True


def _close_parent(record: SweepRecord, arm: str) -> None:
    """Write which trial represents an arm to the arm's run in MLflow, as tags, and end that run: a metric of the search
    would be compared as a result. Copy its checkpoint to the configured address, if it is kept."""
    try:
        tracker = tracking.Tracker.resume(record.parents[arm])
        found = record.search(arm).select(number=record.chosen.get(arm)) if arm in record.chosen else [record.best(arm)]
        run = found[0] if found else None
        if run:
            chosen = {f"ablate.best.{path}": value for path, value in run.params.items()}
            tracker.set_tags({"ablate.best.run_id": run.run_id, **chosen})
        tracker.end("completed")
        if run:
            experiment = record.spec.at(arm, run.params)
            if (url := experiment.copied_to) and run.run_id and measure_checkpoint(run.run_id):
                tracker.set_tags({"ablate.copy": copy_run(experiment, url, run.run_id)})
    except AblateError as error:
        logger.warning(str(error))
