"""A run that this process trains: its name, its experiment, and its end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.config.errors import TakenOverError
from ablate.config.formatting import count_noun, format_number
from ablate.experiment.metrics import read_metric, shorten_metric
from ablate.scheduler.donors import pin_donors
from ablate.scheduler.leases import PAUSED, read_owner
from ablate.scheduler.storage import do_locked
from ablate.scheduler.studies import AT_RUNG, RUNGS, Ending, Writer
from ablate.sweeps.records import COSTS
from ablate.sweeps.runs import SEARCH, SELECTION, label_run
from ablate.sweeps.stages import Wanted
from ablate.tracking.provenance import COMPARED
from ablate.training.procedures import BRANCHED, Result

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from ablate.experiment.trainable import Trainable

ROLES = {SEARCH: "trial"}  # stage -> the tag `ablate.role` of its runs, where that is another word


class Task:
    """A run that this process trains, and owns in the storage.

    Args:
        writer: of the sweep.
        wanted: the run, with all of its settings.
        study: its study.
        number: of its trial there.
        trial_id: Optuna's id of that.
        owner: this process, as the storage names the owner of the trial.
    """

    def __init__(
        self, writer: Writer, wanted: Wanted, study: str, number: int, trial_id: int, owner: Mapping[str, Any]
    ) -> None:
        self.writer, self.run, self.study, self.number, self.id, self.owner = (
            writer, wanted, study, number, trial_id, owner
        )  # fmt: skip
        self.spec, self.storage = writer.spec, writer.storage

    @property
    def arm(self) -> str:
        """Its arm."""
        return self.run.arm

    @property
    def label(self) -> str:
        """Its name, in MLflow and on the screen."""
        return label_run(self.arm, self.run.stage, self.run.number, self.run.seed or 0)

    @property
    def parent(self) -> str:
        """The arm's run in MLflow."""
        return self.writer.parents[self.arm]

    @property
    def params(self) -> dict[str, Any]:
        """Its settings over those of the arm."""
        seed = {} if self.run.seed is None else {"seed": self.run.seed}
        return {**self.run.params, **seed}

    @property
    def tags(self) -> dict[str, str]:
        """The tags of its run in MLflow, which no other run of the sweep has."""
        run, role = self.run, ROLES.get(self.run.stage, self.run.stage)
        tags = {"ablate.role": role, "ablate.arm": run.arm, "ablate.trial": str(run.number)}
        tags["mlflow.runColor"] = self.spec.looks[run.arm][0]  # in which MLflow draws it
        tags |= {} if run.seed is None else {"ablate.seed": str(run.seed)}
        return {**tags, **({"ablate.candidate": str(run.number)} if run.stage == SELECTION else {})}

    def build_experiment(self) -> Trainable:
        """Return the experiment that it trains."""
        return pin_donors(self.spec.at(self.arm, self.params), self.storage, f"{self.writer.prefix}{self.arm}")

    # ------------------------------------------------------------------ while it runs

    def read(self) -> FrozenTrial:
        """Return its trial as it is in the storage."""
        return self.storage.get_trial(self.id)

    def note(self, key: str, value: object) -> None:
        """Set an attribute of its trial."""
        self.storage.set_trial_user_attr(self.id, key, value)

    def report(self, validations: Mapping[int, Mapping[str, float]]) -> float | None:
        """Write down the objective at validations that are not known yet, and return the last; None: it has none."""
        known, value = self.read().intermediate_values, None
        for step, metrics in validations.items():
            if (value := read_metric(metrics, self.spec.objective.metric)) is not None and step not in known:
                self.storage.set_trial_intermediate_value(self.id, step, float(value))
        return value

    def should_prune(self) -> bool:
        """Return whether it must be stopped now. At least one run of an arm's search always goes to its end."""
        if self.run.stage != SEARCH or not self.spec.pruner.stops_trials:
            return False
        if not self.writer.prunes(self.arm, self.study, self.read()):
            return False
        self.writer.studies.refresh()
        search = self.writer.studies.read().search(self.arm)
        return any(one.number != self.run.number and one.status in ("completed", "running") for one in search)

    # ------------------------------------------------------------------ how it ends

    def record_result(self, result: Result) -> None:
        """Record a result. A diverged run counts as the worst, so that the search learns from it."""
        metric, value = self.spec.objective.metric, None
        if result.status in ("completed", "paused"):
            value = read_metric(result.metrics, metric)
            if value is None:  # of a run that was begun when its checkpoints had no scores
                where = "its last validation" if result.status == "completed" else "its validation at the rung"
                self.record_failure(f"{where} has no {metric}")
                return
        elif result.status == "diverged":
            value = math.inf if self.spec.objective.direction == "minimize" else -math.inf
        if result.status == "paused":
            self._pause(result, value or 0.0)
            return
        state = "PRUNED" if result.status == "pruned" else "COMPLETE"
        self._tell(Ending(state, result.status, result.reason, value, self._build_notes(result)))
        self.writer.drop_checkpoints(self.arm)

    def record_failure(self, reason: str) -> None:
        """Record a failure; the arm's other runs continue."""
        self._tell(Ending("FAIL", "failed", reason))

    def let_go(self, reason: str, seconds: float = 0.0) -> None:
        """Free a run that this process interrupted after `seconds` of training, to go on from its last checkpoint.
        Raises TakenOverError if it is another process's by now."""

        def free() -> None:
            trial = self._read_own()
            self.note("seconds_before", trial.user_attrs.get("seconds_before", 0.0) + seconds)
            self.writer.free(self.study, trial, reason)

        do_locked(self.storage, free)

    def record_loss(self) -> None:
        """Free a run whose process goes on, but lost the other ranks of its group."""
        reason = "other ranks of its group were lost"
        do_locked(self.storage, lambda: self.writer.free_lost(self.study, self._read_own(), reason))

    def _read_own(self) -> FrozenTrial:
        """Return its trial as it is in the storage. Raises TakenOverError if this process does not own it any more."""
        trial = self.read()
        if trial.state.name != "RUNNING" or read_owner(trial) != self.owner:
            raise TakenOverError(f"{self.label} was taken over by another process.")
        return trial

    def _tell(self, ending: Ending) -> None:
        """Write its end. Raises TakenOverError if this process does not own it any more."""

        def write() -> None:
            trial = self.read()
            if trial.state.name == ending.state and read_owner(trial) == self.owner:
                return  # it was written before the connection broke, and this step began anew
            self.writer.write_ending(self.study, self._read_own(), ending)

        do_locked(self.storage, write)

    def _pause(self, result: Result, value: float) -> None:
        """Write down what it has reached at its rung, and leave it to wait, without a process, until all settings of
        the arm have ended theirs."""
        metric, length = self.spec.objective.metric, self.run.updates or 0
        branched = int(result.facts.get(BRANCHED, 0))
        rung = {"updates": length, "value": value, "metrics": dict(result.metrics), "branched": branched}
        reason = f"at the rung of {count_noun(length, 'update')}, {shorten_metric(metric)} {format_number(value)}"

        def write() -> None:
            trial, notes = self._read_own(), self._build_notes(result)
            self.note(AT_RUNG, notes)
            self.note("seconds_before", notes["seconds"])
            self.note(RUNGS, [*trial.user_attrs.get(RUNGS, ()), rung])
            self.writer.free(self.study, trial, reason, {PAUSED: True})

        do_locked(self.storage, write)

    def _build_notes(self, result: Result) -> dict[str, Any]:
        """Return what the storage keeps of a result, besides the objective."""
        seconds = self.read().user_attrs.get("seconds_before", 0.0) + result.seconds
        return {
            "metrics": result.metrics,
            "step": result.step,
            "seconds": round(seconds, 3),
            "items_per_update": result.items_per_update,
            "facts": {key: str(result.facts[key]) for key in COMPARED if key in result.facts},
            **({"layers": result.layers} if result.layers else {}),
            "costs": {key: result.facts[name] for key, name in COSTS.items() if name in result.facts},
        }


def locate_failure(title: str, label: str) -> Path:
    """Return the file for the traceback of a failed run of the sweep `title`, or the end of its output."""
    name = label.replace("#", "").replace(" ", "-")
    return tracking.open_folder("failures") / f"{title}-{name}.txt"
