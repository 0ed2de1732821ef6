"""Running a sweep: one process asks Optuna, starts trials in worker processes, and records their results."""

from __future__ import annotations

import contextlib
import signal
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.config import plugins
from ablate.config.errors import AblateError, StoreError, SweepError
from ablate.config.formatting import count_noun, format_number, format_setting
from ablate.config.logs import open_console
from ablate.distributed import ranks
from ablate.experiment.metrics import name_in_mlflow, read_metric, shorten_metric
from ablate.sweeps.arms import ArmTrials, end_run
from ablate.sweeps.heartbeats import HEARTBEAT, record_heartbeat
from ablate.sweeps.preparation import list_changed_plugins, note_ranks, open_sweep, read_compilation
from ablate.sweeps.progress import Display, Running
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.storage import read_sweep, storage_url
from ablate.sweeps.storage_errors import translate_storage_errors
from ablate.sweeps.trial_queue import TrialQueue
from ablate.sweeps.worker import GroupWorker, Worker, handle_signals, pick_devices, share_cores, start_server
from ablate.training.procedures import Place, Result
from ablate.training.runs import copy_run, measure_checkpoint
from ablate.verdict.outcomes import LOSS, TrialRecord, classify

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

    from optuna import Trial
    from rich.console import Console

    from ablate.config.merging import Tree

POLL = 1.0  # seconds between two looks at what other processes do
PATIENCE = 8.0  # seconds that a worker is given to write its checkpoint after Ctrl-C


def sweep(
    spec: Sweep,
    *,
    workers: int = 1,
    storage: str | None = None,
    fresh: bool = False,
    console: Console | None = None,
) -> SweepRecord:
    """Run or continue `spec` as `ablate.sweeps.shown.sweep` does, and shows its progress on `console` alone."""
    warnings.filterwarnings("ignore", module="optuna")
    if workers > 1 and ranks.world_size() > 1:
        raise SweepError(
            f"--workers {workers} in a group of {ranks.world_size()} ranks: a group trains one trial at a time. Omit "
            "it, and start more groups on the same storage."
        )
    url = storage_url(storage)
    wanted = share_cores(max(workers, ranks.local_size()))
    studies, title, arms, threads = open_sweep(spec, url, fresh, wanted)
    with translate_storage_errors(url):
        queue = TrialQueue(arms, studies)
        again = queue.recover()
        runner = _Runner(arms[0].spec, title, queue, workers, threads, console or open_console())
        if threads != wanted:
            runner.display.note(f"Each trial computes on {count_noun(threads, 'thread')}, as the earlier trials did.")
        if (before := note_ranks(arms)) != ranks.world_size():
            now = count_noun(ranks.world_size(), "rank")
            runner.display.note(
                f"From now on trials are trained by {now}, earlier ones by {before}: their losses are rounded "
                "differently."
            )
        if again:
            runner.display.note(f"{count_noun(again, 'trial')} of an earlier session requeued.")
        runner.run()
    return read_sweep(title, url)


# ---------------------------------------------------------------------------------------------------- while


@dataclass
class _Job:
    arm: ArmTrials
    trial: Trial
    worker: Worker | GroupWorker
    run_id: str | None
    slot: int
    """The number of the worker, from 0."""
    items_per_update: int
    """Tokens or images of one update."""

    @property
    def connection(self) -> Connection:
        """The parent's end of the worker's pipe."""
        return self.worker.connection


class _Runner:
    def __init__(
        self, spec: Sweep, title: str, queue: TrialQueue, workers: int, threads: int, console: Console
    ) -> None:
        self.spec, self.title, self.queue, self.workers, self.threads = spec, title, queue, workers, threads
        self.arms = queue.arms
        self.jobs: dict[Connection, _Job] = {}
        self.idle: dict[int, Worker | GroupWorker] = {}  # by slot
        self.context: ForkServerContext | None = None
        self.plugins = plugins.hash_files(spec.plugin_files)
        self.compilation = read_compilation(self.arms)
        self.stopping = 0  # how often Ctrl-C was pressed
        self.signals: list[int] = []  # that asked to stop
        self.away = 0  # trials that found the tracking server away since one that did not
        self.display = Display(console, spec.objective.metric, workers)
        self._last_beat = time.monotonic()
        self._count()

    def run(self) -> None:
        """Start and monitor trials until every arm has used its budget, or Ctrl-C."""
        with handle_signals(self._stop), self.display:
            try:
                while not self.stopping:
                    while not self.stopping and len(self.jobs) < self.workers and (taken := self.queue.take()):
                        self._start(*taken)
                    if not self.jobs:
                        if self.stopping or not self.queue.must_wait():
                            break
                        self.display.note_once("Waiting for trials of other processes to end.")
                        time.sleep(POLL)
                    for connection in wait(list(self.jobs), timeout=0.5) if self.jobs else ():
                        self._hear(self.jobs[connection])  # type: ignore[index]
                    self._beat()
                    self.display.refresh()
            finally:
                self._stop_workers()
                for worker in self.idle.values():
                    worker.dismiss()
        if self.stopping:
            raise KeyboardInterrupt(*self.signals)
        self._close_parents()

    def _beat(self) -> None:
        """Record heartbeats of this machine's trials."""
        if time.monotonic() - self._last_beat > HEARTBEAT:
            self._last_beat = time.monotonic()
            for job in self.jobs.values():
                record_heartbeat(job.arm.study, job.trial)

    def _start(self, arm: ArmTrials, trial: Trial) -> None:
        if changes := list_changed_plugins(self.spec, self.plugins):
            arm.requeue(trial, "a plugin was changed")
            raise SweepError(
                f"A plugin was changed while {self.title} runs:\n  {', '.join(changes)}\n"
                "Restore it and run the same command again, or start from the beginning with --fresh."
            )
        experiment = arm.build_experiment(trial)
        name = arm.label(trial)
        tags = {"ablate.sweep": self.title, **arm.tags(trial)}
        run_id = trial.user_attrs.get("run_id")
        if "run_id" in trial.user_attrs and run_id is None:  # killed between starting the run and writing that down
            run_id = tracking.find_run(self.title, {**tags, "mlflow.parentRunId": arm.parent})
        place = Place(self.title, name, arm.parent, tags, run_id, self.compilation)
        slot = min(set(range(self.workers)) - {job.slot for job in self.jobs.values()})
        try:
            worker = self._get_worker(slot, experiment.to_tree(), place)
        except (EOFError, OSError) as error:  # the server that forks workers was stopped, by Ctrl-C while it started
            arm.requeue(trial, "stopped before it started")
            if self.stopping:
                return
            raise StoreError(
                f"No worker process could be started: {type(error).__name__}. Run the same command again."
            ) from None
        self.jobs[worker.connection] = _Job(arm, trial, worker, run_id, slot, experiment.items_per_update)
        shown = ", ".join(f"{path}={format_setting(v)}" for path, v in trial.params.items() if path != "seed")
        self.display.show_start(slot, Running(name, shown, experiment.trainer.max_steps))

    def _get_worker(self, slot: int, experiment: Tree, place: Place) -> Worker | GroupWorker:
        """Return the worker that trains it: the slot's, or a new one. Raises EOFError or OSError if none starts."""
        worker = self.idle.pop(slot, None)
        if worker:
            try:
                worker.begin(experiment, place)
                return worker
            except OSError:  # killed while it had nothing to do
                worker.dismiss()
        if ranks.world_size() > 1:
            worker = GroupWorker(self.threads)
        else:
            self.context = self.context or start_server(self.threads)
            worker = Worker(self.context, self.threads, pick_devices(slot, self.workers))
        worker.begin(experiment, place)
        return worker

    def _hear(self, job: _Job) -> None:
        """Handle one message of a trial."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            message = job.connection.recv()
        except (EOFError, OSError):
            message = ("died",)
        try:
            self._handle(job, *message)
        except UpdateFinishedTrialError:  # this machine was out of reach for minutes
            job.worker.kill()
            self._close(job, "taken over by another machine", finished=False)

    def _handle(self, job: _Job, kind: str, *content: Any) -> None:
        if kind == "started":
            self.away = 0
            job.run_id, updates, validations = content
            job.trial.set_user_attr("run_id", job.run_id)
            job.arm.report_missing(job.trial, validations)
            self.display.show_resumed(job.slot, updates)
        elif kind == "waiting":
            self.display.note_once(content[0])
        elif kind == "progress":
            self.display.show_progress(job.slot, *content)
        elif kind == "validation":
            self._answer(job, "prune" if self._report(job, *content) else "go")
        elif kind == "done":
            result = content[0]
            if result.status == "interrupted":
                job.arm.requeue(job.trial, result.reason, seconds=result.seconds)
                self._close(job, "interrupted", finished=False)
                return
            job.arm.record_result(job.trial, result)
            self._count()
            metric = self.spec.objective.metric
            shown = (
                f"{shorten_metric(metric)} {format_number(read_metric(result.metrics, metric))}"
                if result.status == "completed"
                else result.reason
            )
            if self._tag_outcome(job, result) == "stuck":
                shown += " (stuck: not better than predicting the frequencies of tokens or classes)"
            self._close(job, shown if shown.startswith(result.status) else f"{result.status}, {shown}", finished=True)
        elif kind == "away":  # of no trial's making, and the next one would meet it too
            job.arm.requeue(job.trial, content[0])
            self._close(job, "interrupted", finished=False)
            self.away += 1
            if tracking.is_remote() and self.away == 1:  # a server may come back: the next trial waits for it
                return
            raise StoreError(f"{content[0]} Finished trials are safe; the same command continues.")
        elif kind == "lost":
            self._record_death(job, content[0])
            raise StoreError(f"{content[0]} Finished trials are safe; the same command continues.")
        elif kind == "failed":
            reason, trace = content
            job.arm.record_failure(job.trial, reason)
            name = job.arm.label(job.trial).replace("#", "").replace(" ", "-")
            file = tracking.open_folder("failures") / f"{self.title}-{name}.txt"
            file.write_text(trace, encoding="utf-8")
            self._close(job, f"FAILED, {reason} (traceback: {file})", finished=False)
        elif kind == "died":
            self._handle_death(job)

    def _report(self, job: _Job, step: int, metrics: Mapping[str, float]) -> bool:
        """Report the objective at a validation, if it is known there, and return whether the trial must be pruned."""
        metric = self.spec.objective.metric
        value = read_metric(metrics, metric)
        if value is None:
            return False
        job.trial.report(value, step)
        if (name := name_in_mlflow(metric)) != metric and job.run_id:  # the run itself knows its parts alone
            with contextlib.suppress(StoreError), tracking.explain_errors(tracking.tracking_uri()):
                tracking.client().log_metric(job.run_id, name, value, step=step * job.items_per_update)
        return job.arm.should_prune(job.trial)

    def _tag_outcome(self, job: _Job, result: Result) -> str:
        """Write the outcome of a run to MLflow: trained, stuck or diverged; return it, '' for a pruned run."""
        if result.status not in ("completed", "diverged"):
            return ""
        own = next(arm for arm in self.arms if arm.arm == job.arm.arm)
        ending = "diverged"
        if result.status == "completed":
            ending = classify(result.metrics.get(LOSS), own.read_notes().get("trivial_loss"))
        if result.run_id:
            with contextlib.suppress(StoreError), tracking.explain_errors(tracking.tracking_uri()):
                tracking.client().set_tag(result.run_id, "ablate.outcome", ending)
        return ending

    def _answer(self, job: _Job, word: str) -> None:
        with contextlib.suppress(OSError):  # it has died; the next look at its pipe says so
            job.connection.send(word)

    def _handle_death(self, job: _Job) -> None:
        """Handle a worker that ended without a message: killed, or out of memory."""
        self._record_death(job, job.worker.describe_end())

    def _record_death(self, job: _Job, reason: str) -> None:
        status = job.arm.record_death(job.trial, reason)
        if status == "failed":
            end_run(job.run_id, "failed", reason)
        self._close(
            job, f"{status}, {reason}{'; it will be retried' if status == 'interrupted' else ''}", finished=False
        )

    def _close(self, job: _Job, text: str, finished: bool) -> None:
        del self.jobs[job.connection]
        if finished and job.worker.lasts:
            self.idle[job.slot] = job.worker
        else:
            job.worker.dismiss()
        self.display.show_end(job.slot, text, finished)

    def _stop_workers(self) -> None:
        """Ask every worker to write its checkpoint, wait, and requeue every trial."""
        from optuna.exceptions import UpdateFinishedTrialError

        for job in self.jobs.values():
            self._answer(job, "stop")
        deadline = time.monotonic() + PATIENCE
        while self.jobs and time.monotonic() < deadline and self.stopping < 2:
            for connection in wait(list(self.jobs), timeout=0.2):
                job = self.jobs[connection]  # type: ignore[index]
                with contextlib.suppress(StoreError):
                    self._hear(job)
        for job in list(self.jobs.values()):
            job.worker.kill()
            with contextlib.suppress(UpdateFinishedTrialError):
                job.arm.requeue(job.trial, "stopped before its last checkpoint was written")
            with contextlib.suppress(StoreError):
                end_run(job.run_id, "interrupted", "stopped")
            self._close(job, "interrupted", finished=False)

    def _stop(self, number: int, frame: object) -> None:
        """Let Ctrl-C and SIGTERM end the sweep in order; a second Ctrl-C does not wait for checkpoints."""
        self.signals.append(number)
        pressed = number == signal.SIGINT and ranks.world_size() == 1  # torchrun passes on what reached us too
        self.stopping += pressed or not self.stopping  # `timeout` sends SIGTERM to us, and to our group

    # ------------------------------------------------------------------ after

    def _count(self) -> None:
        """Show the progress and the best trials, including those of other processes."""
        tallies = [part.tally() for part in self.queue.parts]
        self.display.done = sum(tally.finished for tally in tallies)
        self.display.total = sum(tally.started + tally.open for tally in tallies)
        self.display.total += self.queue.confirmation.count_ahead()  # it grows with seeds that are added and crossed
        best = {arm.arm: trial for arm in self.arms if (trial := arm.find_best())}
        self.display.best = ", ".join(f"{arm} {format_number(trial.value)}" for arm, trial in best.items())
        if text := self.queue.confirmation.describe_news():
            self.display.show_verdict(text)

    def _close_parents(self) -> None:
        """Write the trial that represents each arm to the arm's run in MLflow and end that run."""
        for arm in self.arms:
            try:
                tracker = tracking.Tracker.resume(arm.parent)
                if trial := arm.find_settled():
                    metrics = {
                        f"winner_of_search/optimistic_{key.removeprefix('val/')}": v for key, v in trial.metrics.items()
                    }
                    tracker.log_metrics(metrics, arm.tally().finished)
                    chosen = {f"ablate.best.{path}": value for path, value in trial.params.items()}
                    tracker.set_tags({"ablate.best.run_id": trial.run_id, **chosen})
                tracker.end("completed")
                if trial:
                    self._copy(arm, trial, tracker)
            except AblateError as error:
                self.display.note(str(error))

    def _copy(self, arm: ArmTrials, trial: TrialRecord, tracker: tracking.Tracker) -> None:
        """Copy the checkpoint of the trial that represents an arm to the configured address, if it is kept."""
        experiment = self.spec.at(arm.arm, trial.params)
        if experiment.trainer.copy_to and trial.run_id and measure_checkpoint(trial.run_id):
            tracker.set_tags({"ablate.copy": copy_run(experiment, trial.run_id)})
