"""What is written down of a sweep's runs: their ends, those that lost their process, and notes on arms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.scheduler.leases import OWNER, build_free_owner, count_losses
from ablate.scheduler.samplers import build_pruner
from ablate.scheduler.studies import ENDING, INPUTS, SESSION, STUDIES, Studies
from ablate.sweeps.runs import FINISHED
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.stages import find_kept
from ablate.training.runs import discard_checkpoint

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

AT_RUNG = "at_rung"  # of a trial: what would be kept of it if it ended at its last rung


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    state: str
    """Optuna's: COMPLETE, PRUNED or FAIL."""
    status: str
    reason: str = ""
    value: float | None = None
    """The objective."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What else the storage keeps."""


class Writer:
    """Writes what becomes of the runs of one generation of a sweep.

    Args:
        storage: Optuna's.
        name: of the sweep.
        generation: of the sweep.
        spec: the sweep.
    """

    def __init__(self, storage: BaseStorage, name: str, generation: int, spec: Sweep) -> None:
        self.storage, self.spec = storage, spec
        self.studies = Studies(storage, name, generation, spec)
        self.prefix = self.studies.prefix
        self.abandoned: set[tuple[str, int]] = set()
        """Trials, by study and number, that this process took and could not hand out."""

    @property
    def full_name(self) -> str:
        """NAME@GENERATION."""
        return self.prefix[:-1]

    @cached_property
    def parents(self) -> dict[str, str]:
        """Arm -> its run in MLflow."""
        return {arm: self.read_notes(arm).get("parent", "") for arm in self.spec.all_arms}

    def read_notes(self, arm: str) -> dict[str, Any]:
        """Return the attributes of the search of an arm."""
        return self.storage.get_study_user_attrs(self.studies.find_id(f"{self.prefix}{arm}"))

    def write_note(self, arm: str, key: str, value: object) -> None:
        """Set an attribute of the search of an arm."""
        self.storage.set_study_user_attr(self.studies.find_id(f"{self.prefix}{arm}"), key, value)
        self.studies.refresh()

    def note_studies(self, arm: str, names: Iterable[str]) -> None:
        """Write down that studies of the sweep were made, so that it is seen if one is deleted."""
        before = self.read_notes(arm).get(STUDIES, [])
        if new := [name for name in names if name not in before]:
            self.write_note(arm, STUDIES, [*before, *new])

    def keep_first(self, key: str, value: int) -> int:
        """Return what was first noted as `key` of the sweep, and note it of all arms; `value`, if it is the first."""
        notes = [self.read_notes(arm) for arm in self.spec.all_arms]
        kept = int(next((known for own in notes if (known := own.get(key))), value))
        for arm, own in zip(self.spec.all_arms, notes, strict=True):
            if own.get(key) != kept:
                self.write_note(arm, key, kept)
        return kept

    def note_inputs(self, arm: str, inputs: Mapping[str, str]) -> None:
        """Write down what runs of an arm read besides their settings, where it is not known yet."""
        before = self.read_notes(arm).get(INPUTS, {})
        if inputs.keys() - before.keys():
            self.write_note(arm, INPUTS, {**inputs, **before})

    def write_ending(self, study: str, trial: FrozenTrial, ending: Ending) -> None:
        """Write the end of a trial."""
        from optuna.trial import TrialState

        trial_id = self.studies.find_trial_id(study, trial.number)
        self.storage.set_trial_user_attr(trial_id, ENDING, describe_ending(ending, self.studies.session))
        value = ending.value
        if value is None and ending.state == "PRUNED" and trial.intermediate_values:
            value = trial.intermediate_values[max(trial.intermediate_values)]
        self.storage.set_trial_state_values(trial_id, TrialState[ending.state], None if value is None else [value])
        self.studies.refresh()

    def drop_checkpoints(self, arm: str) -> None:
        """Remove the checkpoints of finished runs of an arm that the sweep does not keep."""
        if self.spec.checkpoints == "all":
            return
        record = self.studies.read()
        kept = find_kept(record, arm) if self.spec.checkpoints == "best" else set()
        for run in record.runs.select(arm, status=FINISHED):
            if run.run_id and run.run_id not in kept:
                discard_checkpoint(run.run_id)

    def load(self, name: str) -> Study:
        """Return a study as Optuna's samplers and pruners see it."""
        import optuna

        return optuna.load_study(study_name=name, storage=self.storage)

    def prunes(self, arm: str, study: str, trial: FrozenTrial) -> bool:
        """Return whether the pruner stops a trial of a search."""
        base = self.spec.base(arm)
        pruner = build_pruner(self.spec.pruner, base.trainer.max_steps, base.schedule.warmup(base.trainer.max_steps))
        return pruner.prune(self.load(study), trial)

    def free_lost(self, study: str, trial: FrozenTrial, reason: str) -> None:
        """Free a run that lost its process or, if that happened too often without a validation in between, record it
        as failed."""
        counts, too_often = count_losses(trial)
        if too_often:
            text = f"its process was killed or crashed, {too_often} times without progress"
            self.write_ending(study, trial, Ending("FAIL", "failed", text))
            end_run(trial.user_attrs.get("run_id"), "failed", text)
        else:
            self.free(study, trial, reason, counts)

    def free(self, study: str, trial: FrozenTrial, reason: str, more: Mapping[str, Any] | None = None) -> None:
        """Leave a run without a process, to be continued by the next that asks; `more` is kept with the reason."""
        owner = build_free_owner(trial, reason, more)
        self.storage.set_trial_user_attr(self.studies.find_trial_id(study, trial.number), OWNER, owner)
        self.abandoned.discard((study, trial.number))
        self.studies.refresh()


def describe_ending(ending: Ending, session: int) -> dict[str, Any]:
    """Return what the storage keeps of an end, in one write: it is there whole."""
    failed = {SESSION: session} if ending.status == "failed" else {}
    return {"status": ending.status, "reason": ending.reason, **ending.notes, **failed}


def end_run(run_id: str | None, status: str, reason: str) -> None:
    """End the MLflow run of a trial whose process could not do so."""
    if run_id:
        tracking.Tracker(run_id).end(status, reason)


def create_study(storage: BaseStorage, name: str, spec: Sweep) -> Study:
    """Return the study `name`, created if missing, continued with the sweep file `spec`."""
    import optuna

    study = optuna.create_study(
        storage=storage, study_name=name, direction=spec.objective.direction, load_if_exists=True
    )
    study.set_user_attr("spec", spec.to_tree())
    return study
