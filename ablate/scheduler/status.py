"""The status of a sweep, read from its storage: a row for each arm, and a display in any process on any machine,
whichever process trains."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.config.errors import StoreError
from ablate.config.formatting import format_number, format_setting
from ablate.experiment.metrics import shorten_metric
from ablate.scheduler.leases import ENDED, SIGNS, SILENT, TAKEN_OVER, read_claim, read_owner
from ablate.scheduler.progress import Display, Running
from ablate.scheduler.storage import (
    list_sweeps,
    open_storage,
    read_sweep,
    read_sweep_from,
    storage_url,
    translate_storage_errors,
)
from ablate.scheduler.studies import Studies, trial_status
from ablate.scheduler.tasks import locate_failure
from ablate.sweeps.comparison import compare_record, compare_record_effects, plan_record
from ablate.sweeps.records import SweepRecord, format_title
from ablate.sweeps.runs import CHALLENGE, CHOOSING, FINISHED, SELECTION, TUNING, Run
from ablate.sweeps.stages import Selection, count_runs
from ablate.sweeps.verdict_summary import summarise_verdict, tell_verdict
from ablate.training.runs import measure_checkpoint
from ablate.verdict.failures import count_failures

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial
    from rich.console import Console


def read_statuses(title: str | None = None, storage: str | None = None) -> list[dict[str, Any]]:
    """Return one row per arm of the sweep `title`, or of every sweep's latest generation. Raises SweepError for an
    unknown one."""
    url = storage_url(storage)
    titles = [title] if title else [format_title(n, g[-1]) for n, g in list_sweeps(url).items()]
    rows = []
    for name in titles:
        sweep = read_sweep(name, url)
        wanted, compared = plan_record(sweep).seeds, compare_record(sweep)
        verdict, effects = summarise_verdict(sweep), compare_record_effects(sweep)
        deleted = sweep.describe_deleted()
        with contextlib.suppress(StoreError):  # the state is that of the studies, whether or not MLflow can be read
            deleted = "\n".join(filter(None, [deleted, *tracking.list_deleted(sweep.title, sweep.list_run_ids())]))
        for arm in sweep.arms:
            best, runs = sweep.best(arm), sweep.runs.select(arm)
            selected = runs.select(stage=SELECTION).finished
            failures = count_failures(sweep.fresh(arm).outcomes().values())
            rows.append(
                {
                    "verdict": verdict,
                    "arm_verdict": tell_verdict(sweep, arm, compared) if arm in compared else None,
                    "sweep": sweep.title,
                    "arm": arm,
                    "at_grid": sweep.spec.at_grid,
                    "deleted": deleted,
                    "effects": {name: effect.name_kind() for name, effect in effects.items()},
                    "target": sweep.target(arm),
                    **sweep.search(arm).count_statuses(),
                    "selected": selected,
                    "selection_target": selected if arm in sweep.chosen else Selection().expect(sweep, arm),
                    "confirmed": sweep.fresh(arm).finished,
                    "confirmed_failed": failures.failed if failures else 0,
                    "confirm_target": wanted.get(arm, sweep.spec.confirm.first_seeds),
                    "metric": sweep.spec.objective.metric,
                    "best": best.value if best else None,
                    "params": best.params if best else {},
                    "checkpoint_bytes": sum(map(measure_checkpoint, {run.run_id for run in runs if run.run_id})),
                    "failures": [
                        f"{f'#{run.number}' if run.stage in TUNING else f'seed {run.seed}'}: {run.reason}"
                        for run in runs.select(status="failed")
                    ],
                }
            )
    return rows


POLL = 1.0  # seconds between two looks
SHARE = 30.0  # a look may take one part of so many of the time


class Follower:
    """Shows the trials of a sweep on `display`.

    Args:
        name: the sweep, as NAME or NAME@GENERATION.
        storage: Optuna's.
        display: where.
    """

    def __init__(self, name: str, storage: BaseStorage, display: Display) -> None:
        self.display = display
        self.record = read_sweep_from(storage, name)
        self._studies = Studies(storage, self.record.name, self.record.generation)
        self._states: dict[tuple[str, int], tuple[int, str]] = {}  # study and number of a trial -> claim and status
        self._seeds = 0  # that had ended when the verdict was last shown
        self._next = 0.0
        for study, trial in self._list_trials():
            if (status := trial_status(trial)) != "running":  # what runs is shown as started
                self._states[study, trial.number] = read_claim(trial), status
        self._count()
        self.display.done = self._counted
        self._tell_verdict()

    def look_if_due(self) -> None:
        """`look`, unless looks would take too much of the time."""
        begin = time.monotonic()
        if begin >= self._next:
            self.look()
            self._next = time.monotonic() + max(POLL, SHARE * (time.monotonic() - begin))

    def look(self) -> None:
        """Show what has changed since the last look."""
        events: list[tuple[float, Callable[[], None]]] = []
        has_ended = False
        for study, trial in self._list_trials():
            key, status = (study, trial.number), _read_status(trial)
            before, state = self._states.get(key, (0, "waiting")), (read_claim(trial), status)
            if state[0] > before[0] and status != "waiting":
                if before[1] == "running":
                    events.append((0.0, self._build_end(key, study, trial, "interrupted")))
                events.append((_read_time(trial.datetime_start), self._build_start(key, study, trial)))
                before = state[0], "running"
            if status != before[1] and status != "running":  # one that waits has ended a rung
                events.append((_read_time(trial.datetime_complete), self._build_end(key, study, trial, status)))
                has_ended = True
            elif status == "running":
                events.append((float("inf"), partial(self._show_signs, key, trial)))
            self._states[key] = state
        if has_ended:
            self._count()
        for _, show in sorted(events, key=lambda event: event[0]):
            show()
        if self._counted <= self.display.done:  # or runs that it counts have ended since, and the next look shows them
            self._tell_verdict()
        self.display.refresh()

    def close(self) -> None:
        """Show what has changed since the last look, and the verdict last."""
        self.look()
        self.display.close()

    def is_over(self) -> bool:
        """Return whether all runs of the sweep have ended; those that failed are for the next session."""
        ended = self.display.done + len(self.record.runs.select(status="failed"))
        return ended >= self.display.total and not self.display.running

    def _list_trials(self) -> list[tuple[str, FrozenTrial]]:
        """Return the trials of all studies of the sweep, each with the name of its study; the last attempt at each."""
        self._studies.refresh()
        names = self._studies.studies
        return [(name, trial) for name in names for trial in self._studies.list_last_attempts(name)]

    def _count(self) -> None:
        """Read the results, and show the total and the best of each search."""
        self.record = record = self._studies.read()
        self._counted, self.display.total = count_runs(record)
        best = {arm: trial for arm in record.arms if (trial := record.best(arm))}
        self.display.best = ", ".join(f"{arm} {format_number(trial.value)}" for arm, trial in best.items())

    def _tell_verdict(self) -> None:
        """Show the verdict if seeds have ended since it was last shown."""
        seeds = sum(run.stage not in CHOOSING and run.status in FINISHED for run in self.record.runs)
        if seeds != self._seeds:
            self._seeds = seeds
            self.display.show_verdict(summarise_verdict(self.record))

    def _build_start(self, key: tuple[str, int], study: str, trial: FrozenTrial) -> Callable[[], None]:
        running = self._describe(self._studies.translate(study, trial))

        def show() -> None:
            self.display.show_start(key, running)
            self._show_signs(key, trial)

        return show

    def _show_signs(self, key: tuple[str, int], trial: FrozenTrial) -> None:
        """Show the progress of a running trial, as its last sign of life says."""
        signs = trial.user_attrs.get(SIGNS)
        if signs and signs["claim"] == read_claim(trial):
            self.display.show_resumed(key, signs["resumed"])
            if signs["loss"] is not None:
                self.display.show_progress(key, signs["step"], signs["loss"])

    def _build_end(self, key: tuple[str, int], study: str, trial: FrozenTrial, status: str) -> Callable[[], None]:
        run = self._studies.translate(study, trial)
        owner = read_owner(trial)
        text = self._describe_end(run, status, str(owner.get("reason", "")), bool(owner.get(TAKEN_OVER)))
        running, is_finished = self._describe(run), status in FINISHED

        def show() -> None:
            self.display.done += is_finished
            self.display.show_end(key, running, text, (run.seconds or 0.0) if is_finished else None)

        return show

    def _describe_end(self, run: Run, status: str, interrupted: str, taken_over: bool) -> str:
        """Return how a trial ended, in a few words. `interrupted`: why it was, where nobody has begun it again since,
        and `taken_over` otherwise: whether its process may still live."""
        if status == "failed":
            file = locate_failure(self.record.title, run.label)
            return f"FAILED, {run.reason}" + (f" (details: {file})" if file.exists() else "")
        if status == "completed":
            metric = self.record.spec.objective.metric
            text = f"completed, {shorten_metric(metric)} {format_number(run.value)}"
            if self.record.runs.classify(run.value, run.metrics) == "stuck":
                trivial = "a predictor that ignores its inputs" if self.record.spec.is_own else "the trivial value"
                text += f" (stuck: no better than {trivial})"
            return text
        if status == "waiting":
            return interrupted
        reason = run.reason if status != "interrupted" else interrupted or (SILENT if taken_over else ENDED)
        if status == "interrupted" and not reason.startswith("stopped"):
            reason += f"; it will be {'continued' if self.record.spec.base(run.arm).resumes else 'repeated'}"
        return reason if reason.startswith(status) else f"{status}, {reason}"

    def _describe(self, run: Run) -> Running:
        """Return the display's row of a trial."""
        params = run.params if run.stage in (*TUNING, CHALLENGE) else {}
        shown = ", ".join(f"{path}={format_setting(value)}" for path, value in params.items() if path != "seed")
        steps = run.params.get("trainer.max_steps") or self.record.spec.base(run.arm).length or 0
        return Running(run.label, shown, int(steps))


def follow_sweep(record: SweepRecord, url: str, console: Console) -> None:
    """Show the progress of a sweep in the storage at `url` on `console`, until all its runs have ended."""
    display = Display(console, record.spec.objective.metric, workers=1)
    with translate_storage_errors(url), display:
        follower = Follower(record.full_name, open_storage(url), display)
        while True:
            follower.look_if_due()
            display.workers = max(1, len(display.running))
            if follower.is_over():
                display.close()
                return
            time.sleep(POLL)


def _read_status(trial: FrozenTrial) -> str:
    """Return the status of a trial; waiting for one that is begun and not yet claimed."""
    return "waiting" if trial.state.name == "RUNNING" and not read_claim(trial) else trial_status(trial)


def _read_time(moment: datetime | None) -> float:
    return moment.timestamp() if moment else time.time()
