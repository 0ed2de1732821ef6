"""The one kind of worker: a process that takes the next trial of a sweep from the storage, trains it, and writes down
how it ended, until the sweep is done. A torchrun group is one worker, and rank 0 speaks for it.

There is no protocol: the storage has what others must know of a trial (its owner and signs of life, its values at
validations, its end), and a worker stops on a signal, or when the process that started it has ended.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

from ablate import tracking
from ablate.config import plugins
from ablate.config.errors import ChangedInputsError, RunFailed, StoreError, SweepError, TakenOverError
from ablate.config.formatting import format_duration, join_words
from ablate.distributed import ranks
from ablate.distributed.signals import handle_signals
from ablate.experiment.metrics import list_parts, name_in_mlflow, read_metric
from ablate.scheduler.leases import TAKEN_OVER, Lease, describe_process, has_ended
from ablate.scheduler.preparation import list_changed_plugins, open_queue
from ablate.scheduler.runners import load_runner
from ablate.scheduler.storage import do_locked, find_file, translate_storage_errors
from ablate.scheduler.studies import INPUTS
from ablate.scheduler.tasks import Task, locate_failure
from ablate.tracking.databases import repeat_while_away
from ablate.training.procedures import Earlier, Hooks, Place, Result
from ablate.training.runs import break_lock, describe_error, list_changed_inputs, run_folder

logger = logging.getLogger(__name__)

AWAY = 120.0  # seconds that a trial waits for a tracking server before it begins
POLL = 1.0  # seconds between two looks at what other processes do
FINISHED, STOPPED, SPOILED = "finished", "stopped", "spoiled"
"""Ends of a worker: nothing is left to do; a signal came; a trial failed, and left the process in an unknown state."""


class Worker:
    """A worker of a sweep.

    Args:
        name: the sweep, as NAME or NAME@GENERATION.
        url: its storage.
        parent: the pid of the process that started this one; when that has ended, the worker stops. None: it goes on.
    """

    def __init__(self, name: str, url: str, parent: int | None = None) -> None:
        self.url = url
        self._parent = describe_process(parent) if parent else None
        self.signals: list[int] = []
        """Those that asked it to stop."""
        with translate_storage_errors(url):
            opened = open_queue(name, url) if find_file(url) else repeat_while_away(lambda: open_queue(name, url), url)
            self.queue, self.threads = opened  # a server that is away was there for the command that started this
        self.spec, record = self.queue.spec, self.queue.studies.read()
        self.runner = load_runner(self.spec.kind)
        self.title, self.full_name = record.title, record.full_name
        self._plugins = plugins.hash_files(self.spec.plugin_files)
        self._refusals = 0  # trials that found the tracking server away since one that did not

    def run(self) -> str:
        """Train trials until none is left, a signal comes or a trial fails, and return which: FINISHED, STOPPED or
        SPOILED. Raises StoreError and SweepError, with the trial free for others."""
        self.runner.settle(self.threads)
        is_fresh = True
        with handle_signals(lambda number, frame: self.signals.append(number)), translate_storage_errors(self.url):
            while not self._must_stop():
                if changes := list_changed_plugins(self.spec, self._plugins):  # by which the next run would be read
                    raise self._explain_changes("A plugin", changes)
                taken = self.queue.take()
                if taken is None:
                    if not self.queue.must_wait():
                        return FINISHED
                    time.sleep(POLL)
                elif not self._train(taken):
                    return SPOILED
                else:
                    _free_memory()
                    if is_fresh:  # what the first training imported stays: collecting garbage need not look there again
                        gc.freeze()
                    is_fresh = False
        return STOPPED

    def _must_stop(self) -> bool:
        return bool(self.signals) or (self._parent is not None and has_ended(self._parent))

    def _train(self, task: Task) -> bool:
        """Train one run and write down how it ended; return False if its failure may have spoiled this process."""
        try:
            with Lease(task.storage, task.id, task.owner) as lease:
                result = self._call_train(task, lease)
            self._refusals = 0
            if result.status == "interrupted":
                task.let_go(result.reason, result.seconds)
            else:
                task.record_result(result)
                self._tag_outcome(result)
        except TakenOverError:
            logger.warning(f"{task.label} was taken over by another process, since this one gave no sign of life.")
        except ranks.Lost as error:
            task.record_loss()
            raise StoreError(f"{error} Finished trials are safe; the same command continues.") from None
        except StoreError as error:  # not the trial's error, and the next one would meet it too
            task.let_go(str(error))
            self._refusals += 1
            if not tracking.is_remote() or self._refusals > 1:  # a server may come back: the next trial waits for it
                raise StoreError(f"{error} Finished trials are safe; the same command continues.") from None
        except (ChangedInputsError, SweepError) as error:
            task.let_go(str(error))
            raise
        except RunFailed as error:
            locate_failure(self.title, task.label).write_text(f"{error}\n\n{error.details}\n", encoding="utf-8")
            task.record_failure(str(error))
        except Exception as error:
            trace = tracking.redact(traceback.format_exc())
            locate_failure(self.title, task.label).write_text(trace, encoding="utf-8")
            task.record_failure(describe_error(error))
            return not self.runner.spoils
        return True

    def _call_train(self, task: Task, lease: Lease) -> Result:
        experiment = task.build_experiment()
        tags = {"ablate.sweep": self.title, **task.tags}
        run_id = task.read().user_attrs.get("run_id")
        if run_id is None and task.owner["claim"] > 1:  # killed between starting the run and writing that down
            run_id = tracking.find_run(self.title, {**tags, "mlflow.parentRunId": task.parent})
        if run_id and task.owner.get(TAKEN_OVER):
            break_lock(run_folder(run_id))

        def start(run: str, text: str, before: Earlier) -> None:
            with translate_storage_errors(self.url):  # or they would count as the trial's
                task.note("run_id", run)
                task.report(before.validations)  # a killed process may not have written them down
                lease.note_start(before.updates)

        def decide(step: int, metrics: Mapping[str, float]) -> bool:
            with translate_storage_errors(self.url):
                lease.check()
                return not self._report(task, step, metrics, experiment.items_per_update)

        def must_stop() -> bool:
            with translate_storage_errors(self.url):
                lease.check_if_old()
            return self._must_stop()

        await_store(logger.warning, self._must_stop)

        def check_inputs(inputs: Mapping[str, str]) -> None:
            with translate_storage_errors(self.url):
                self._check_inputs(task.arm, inputs)

        place = Place(self.title, task.label, task.parent, tags, run_id)
        metrics = list_parts(self.spec.objective.metric)
        hooks = Hooks(start, lease.note, decide, must_stop, metrics=metrics, loaded=check_inputs)
        return self.runner.train(experiment, place, hooks, task.run.updates)

    def _explain_changes(self, what: str, changes: Sequence[str]) -> SweepError:
        return SweepError(
            f"{what} was changed while {self.title} runs:\n  {', '.join(changes)}\n"
            "Restore it and run the same command again, or start from the beginning with --fresh."
        )

    def _check_inputs(self, arm: str, now: Mapping[str, str]) -> None:
        """Raise SweepError if data or a model differs from that of earlier runs; write down new ones."""
        own = {other: self.queue.read_notes(other).get(INPUTS, {}) for other in self.spec.all_arms}
        known = {name: digest for inputs in own.values() for name, digest in inputs.items()}
        if changes := list_changed_inputs(known, now):
            raise self._explain_changes("Data, code or a model", changes)
        if new := now.keys() - known.keys():
            if self.spec.kind.imports_inputs:
                raise SweepError(
                    f"{self.title} names {join_words(sorted(new))}, which the command that began it has not seen: "
                    "nothing of it was imported. Whoever trusts it begins the sweep from its file: ablate sweep."
                )
            do_locked(self.queue.storage, lambda: self.queue.note_inputs(arm, now))

    def _report(self, task: Task, step: int, metrics: Mapping[str, float], items: int) -> bool:
        """Report the objective at a validation, if it is known there, and return whether the trial must be pruned."""
        metric, value = self.spec.objective.metric, task.report({step: metrics})
        if value is None:
            return False
        run_id = task.read().user_attrs.get("run_id")
        if (name := name_in_mlflow(metric)) != metric and run_id:  # the run itself knows its parts alone
            with contextlib.suppress(StoreError), tracking.explain_errors(tracking.tracking_uri()):
                tracking.client().log_metric(run_id, name, value, step=step * items)
        return task.should_prune()

    def _tag_outcome(self, result: Result) -> None:
        """Write the outcome of a run to MLflow: trained, stuck or diverged."""
        if result.status not in ("completed", "diverged") or not result.run_id:
            return
        ending = "diverged"
        if result.status == "completed":
            value = read_metric(result.metrics, self.spec.objective.metric)
            ending = self.queue.studies.read().runs.classify(value, result.metrics)
        with contextlib.suppress(StoreError), tracking.explain_errors(tracking.tracking_uri()):
            tracking.client().set_tag(result.run_id, "ablate.outcome", ending)


def _free_memory() -> None:
    """Free the memory of the previous run: Lightning keeps the model in reference cycles, and torch caches a GPU's
    memory."""
    gc.collect()
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def await_store(note: Callable[[str], None], must_stop: Callable[[], bool]) -> None:
    """Return when MLflow answers; wait up to `AWAY` seconds for an unreachable server. Raises StoreError."""
    deadline, noted = time.monotonic() + AWAY, False
    while True:
        try:
            tracking.check_store()
            return
        except StoreError as error:
            if not tracking.is_remote() or time.monotonic() > deadline or must_stop():
                raise
            if not noted:
                note(f"{error} Waiting for it up to {format_duration(AWAY)}.")
            noted = True
        time.sleep(1)
