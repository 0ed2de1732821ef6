"""The trials of one arm: choosing the next trial, and recording the end of a trial."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.experiment.metrics import read_metric
from ablate.sweeps.attempts import ENDING, list_last_attempts, read_trial_notes, trial_number
from ablate.sweeps.comparison import list_candidates
from ablate.sweeps.donors import pin_donors
from ablate.sweeps.heartbeats import describe_process, fail_stale_trials, is_orphan, record_heartbeat
from ablate.sweeps.records import COSTS, count_remaining
from ablate.sweeps.search.space import list_cells, to_distributions
from ablate.sweeps.seed_studies import CHOICE
from ablate.sweeps.spec.references import find_own_donor
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.storage import TrialReader, read_trial, trial_status
from ablate.tracking.provenance import COMPARED
from ablate.training.procedures import Result
from ablate.training.runs import discard_checkpoint
from ablate.verdict.outcomes import FINISHED, TrialRecord, pick_best

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from ablate.experiment.tree import Experiment

DEATHS = 3  # a trial whose process dies this often counts as failed


@dataclass(frozen=True)
class Tally:
    """The counts of an arm's trials."""

    finished: int
    running: int
    open: int
    """Number of trials still to be started; failed trials are retried in the next session."""

    @property
    def started(self) -> int:
        """Trials finished or running."""
        return self.finished + self.running


class ArmTrials:
    """The study of one arm and its remaining budget.

    Args:
        study: Optuna's.
        spec: the sweep.
        arm: the arm's name.
        parent: the arm's run in MLflow.
    """

    def __init__(self, study: Study, spec: Sweep, arm: str, parent: str) -> None:
        from ablate.sweeps.search.fair_pruners import FairPruner

        self.study, self.spec, self.arm, self.parent = study, spec, arm, parent
        base = spec.base(arm)
        steps = base.trainer.max_steps
        study.pruner = FairPruner(spec.pruner.build(steps, base.schedule.warmup(steps)))
        self._trials: list[FrozenTrial] | None = None
        self._records: list[TrialRecord] | None = None
        self._reader = TrialReader(arm)
        self._notes: dict[str, Any] | None = None
        self._abandoned: set[int] = set()  # numbers of trials that `ask` could not hand out

    # ------------------------------------------------------------------ what a trial is

    role = "trial"  # the tag `ablate.role` of its run

    def label(self, trial: Trial) -> str:
        """Return the name of a trial, in MLflow and on the screen."""
        return f"{self.arm} #{trial_number(trial)}"

    def tags(self, trial: Trial) -> dict[str, str]:
        """Return the tags of its run in MLflow, which no other run of the sweep has."""
        return {"ablate.role": self.role, "ablate.arm": self.arm, "ablate.trial": str(trial_number(trial))}

    def params(self, trial: Trial) -> dict[str, Any]:
        """Return the settings of a trial merged over those of the arm: dotted path -> value."""
        return trial.params

    def build_experiment(self, trial: Trial) -> Experiment:
        """Return the experiment that a trial trains."""
        return pin_donors(self.spec.at(self.arm, self.params(trial)), self.study)

    @property
    def waits_for(self) -> str | None:
        """The arm of the same sweep whose best trial these start from, and whose search ends before they begin."""
        return find_own_donor(self.spec, self.arm)

    # ------------------------------------------------------------------ what the storage holds

    def refresh(self) -> None:
        """Read the storage again. What was read is cached until this process writes to the study or asks for a trial: a
        decision reads the same trials dozens of times, and each read needs several queries."""
        self._trials = self._records = self._notes = None

    def _read_attempts(self) -> list[FrozenTrial]:
        """Return all trials of the study, also those that a later one continues."""
        if self._trials is None:
            self._trials = self.study.get_trials(deepcopy=False)
        return self._trials

    def read_notes(self) -> dict[str, Any]:
        """Return the attributes of the study."""
        if self._notes is None:
            self._notes = self.study.user_attrs
        return self._notes

    def write_note(self, key: str, value: object) -> None:
        """Set an attribute of the study."""
        self.study.set_user_attr(key, value)
        self.refresh()

    def read_trials(self) -> list[TrialRecord]:
        """Return the trials so far."""
        if self._records is None:
            self._records = self._reader.read(self._read_attempts())
        return self._records

    def _list_last_attempts(self) -> list[FrozenTrial]:
        return list_last_attempts(self._read_attempts())

    # ------------------------------------------------------------------ which comes next

    def recover(self) -> int:
        """Requeue the trials that an earlier session left: those of dead processes, and failed ones."""
        again = self.requeue_orphans()
        for trial in self._list_last_attempts():
            if trial_status(trial) == "failed" and self._may_retry(trial):
                self._enqueue(trial, deaths=0, resume=False)
                again += 1
        self.drop_checkpoints()  # of the trial that ended last, if the session ended before this
        return again

    def _may_retry(self, trial: FrozenTrial) -> bool:
        """Return whether the budget allows retrying a failed trial."""
        return self.count_remaining(self.read_trials()) > 0

    def requeue_orphans(self) -> int:
        """Requeue the trials of processes that have ended; on other machines, those whose heartbeat stopped minutes
        ago.

        It is called by one process at a time, as `ask` is: a running trial without an owner was left by a process that
        was killed while it asked, an interrupted one that nothing continues by one that was killed in between.
        """
        unfinished = [t for t in self._list_last_attempts() if t.state.name in ("RUNNING", "FAIL")]
        gone = [t for t in unfinished if "owner" not in t.user_attrs or is_orphan(t) or t.number in self._abandoned]
        gone = [t for t in gone if t.state.name == "RUNNING" or read_trial_notes(t).get("status") == "interrupted"]
        for trial in gone:
            if trial.state.name == "RUNNING":
                self.requeue(trial, "its process has ended")
            else:
                self._enqueue(trial, 0, resume=True)
        self.refresh()
        for trial in fail_stale_trials(self.study):
            self._enqueue(trial, trial.user_attrs.get("deaths", 0), resume=True)
            gone.append(trial)
        return len(gone)

    def count_remaining(self, trials: Sequence[TrialRecord]) -> int:
        """Return how many trials the budget still allows, in addition to the finished and running ones of `trials`."""
        return count_remaining(self.spec, self.arm, trials, int(self.read_notes().get("trial_items", 1)))

    def tally(self) -> Tally:
        """Return the counts of its trials, from one read of the storage."""
        trials = self.read_trials()
        counts = Counter(trial.status for trial in trials)
        done, running = sum(counts[status] for status in FINISHED), counts["running"]
        return Tally(done, running, max(0, self.count_remaining(trials) - counts["failed"]))

    def ask(self) -> Trial:
        """Return the next trial, owned by this process: a requeued trial, or a new point."""
        self.requeue_orphans()  # what died since is counted as open: without this a new point would take its place
        frozen = self._read_attempts()
        waiting = next((trial for trial in frozen if trial.state.name == "WAITING"), None)
        if waiting:
            number = trial_number(waiting)
        else:
            number = len(self.read_trials())
            self.study.enqueue_trial(self._pick_fixed(number), user_attrs={"number": number})
        self.study.sampler = self.spec.sampler.build(number)
        trial = self.study.ask(self._list_distributions())
        self._abandoned.add(trial.number)  # unless all of this is written: the database may go away
        trial.set_user_attr("owner", describe_process())
        record_heartbeat(self.study, trial)
        for step, value in trial.user_attrs.get("curve", {}).items():
            trial.report(value, int(step))
            trial.should_prune()  # it was not; asked again, so that the pruner knows the rungs that it passed
        self.refresh()
        self._abandoned.discard(trial.number)
        return trial

    def _pick_fixed(self, number: int) -> dict[str, Any]:
        """Return the values of the new trial `number` that the sampler does not choose."""
        if self.spec.sampler.kind == "grid":
            return self._pick_cell()
        starts = self.spec.starts(self.arm)
        return starts[number] if number < len(starts) else {}

    def _list_distributions(self) -> dict[str, BaseDistribution]:
        """Return the ranges that each trial is chosen from, for Optuna."""
        return to_distributions(self.spec.space(self.arm))

    def should_prune(self, trial: Trial) -> bool:
        """Return whether `trial` must be stopped now. At least one trial of an arm always runs to its end."""
        if not trial.should_prune():
            return False
        self.refresh()
        others = [r.status for r in self.read_trials() if r.number != trial_number(trial)]
        return "completed" in others or "running" in others

    def report_missing(self, trial: Trial, validations: Mapping[int, Mapping[str, float]]) -> None:
        """Report the validations of a trial that a killed sweep process did not receive."""
        known = self._read_frozen(trial.number).intermediate_values
        for step, metrics in validations.items():
            if step not in known and (value := read_metric(metrics, self.spec.objective.metric)) is not None:
                trial.report(value, step)

    def _pick_cell(self) -> dict[str, Any]:
        taken = [r.params for r in self.read_trials()]  # failed ones too: the next session tries those
        return next(cell for cell in list_cells(self.spec.space(self.arm)) if cell not in taken)

    def find_best(self) -> TrialRecord | None:
        """Return the completed trial with the best objective so far."""
        return pick_best(self.read_trials(), self.spec.objective.direction)

    def find_settled(self) -> TrialRecord | None:
        """Return the trial that represents the arm: the one chosen for the test, otherwise the best so far."""
        if choice := self.read_notes().get(CHOICE):
            return next((trial for trial in self.read_trials() if trial.number == choice["trial"]), None)
        return self.find_best()

    # ------------------------------------------------------------------ how it ends

    def record_result(self, trial: Trial, result: Result) -> None:
        """Record a result. A diverged run counts as the worst, so that the search learns from it."""
        value: float | None = None
        state = "COMPLETE"
        if result.status == "completed":
            value = read_metric(result.metrics, self.spec.objective.metric)
            if value is None:  # of a run that was begun when its checkpoints had no scores
                self.record_failure(trial, f"its last validation has no {self.spec.objective.metric}")
                return
        elif result.status == "diverged":
            value = math.inf if self.spec.objective.direction == "minimize" else -math.inf
        elif result.status == "pruned":
            state = "PRUNED"
        seconds = trial.user_attrs.get("seconds_before", 0.0) + result.seconds
        facts = {key: str(result.facts[key]) for key in COMPARED if key in result.facts}
        notes = {
            "metrics": result.metrics,
            "step": result.step,
            "seconds": round(seconds, 3),
            "items_per_update": result.items_per_update,
            "facts": facts,
            "costs": {key: result.facts[name] for key, name in COSTS.items() if name in result.facts},
        }
        self._tell(trial, state, result.status, result.reason, value, notes)
        self.drop_checkpoints()

    def record_failure(self, trial: Trial, reason: str) -> None:
        """Record a failure; the arm's other trials continue."""
        self._tell(trial, "FAIL", "failed", reason)

    def requeue(self, trial: Trial | FrozenTrial, reason: str, deaths: int = 0, seconds: float = 0.0) -> None:
        """Requeue a trial that did not reach its end, to resume from its last checkpoint, after `seconds` of training;
        `deaths` is how often its process died without progress."""
        frozen = self._read_frozen(trial.number)
        self._tell(trial, "FAIL", "interrupted", reason)
        self._enqueue(frozen, deaths, resume=True, seconds=seconds)

    def record_death(self, trial: Trial, reason: str) -> str:
        """Record that a trial's process has died: requeue the trial or, after `DEATHS` without a validation between
        them, record it as failed. Return the status."""
        frozen = self._read_frozen(trial.number)
        moved = len(frozen.intermediate_values) > len(frozen.user_attrs.get("curve", {}))
        deaths = 1 if moved else frozen.user_attrs.get("deaths", 0) + 1
        if deaths < DEATHS:
            self.requeue(trial, reason, deaths)
            return "interrupted"
        self.record_failure(trial, f"{reason}, {deaths} times")
        return "failed"

    def _tell(
        self,
        trial: Trial | FrozenTrial,
        state: str,
        status: str,
        reason: str,
        value: float | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        from optuna.trial import TrialState

        ending = {"status": status, "reason": reason, **(notes or {})}  # in one write, so that it is there whole
        self.study._storage.set_trial_user_attr(trial._trial_id, ENDING, ending)
        self.study.tell(trial.number, value, state=TrialState[state])
        self.refresh()

    def _enqueue(self, trial: FrozenTrial, deaths: int, resume: bool, seconds: float = 0.0) -> None:
        from optuna.trial import TrialState, create_trial

        notes: dict[str, Any] = {"continues": trial.number, "number": trial_number(trial), "deaths": deaths}
        if resume:
            notes["seconds_before"] = trial.user_attrs.get("seconds_before", 0.0) + seconds
            curve = {str(step): value for step, value in trial.intermediate_values.items()}
            curve = {**trial.user_attrs.get("curve", {}), **curve}
            notes |= {"curve": curve, "run_id": trial.user_attrs.get("run_id")}
        params = read_trial(trial, self.arm).params
        if not params.keys() >= self._list_distributions().keys():  # killed in between: the rest is proposed once more
            params = trial.system_attrs.get("fixed_params", {})
        # what samplers keep of a trial is that of its first attempt; rungs are passed again
        kept = {key: value for key, value in trial.system_attrs.items() if not key.startswith("completed_rung")}
        state, attributes = TrialState.WAITING, {**kept, "fixed_params": params}
        self.study.add_trial(create_trial(state=state, system_attrs=attributes, user_attrs=notes))
        self.refresh()
        if not resume and (run_id := trial.user_attrs.get("run_id")):
            discard_checkpoint(run_id)

    def _read_frozen(self, number: int) -> FrozenTrial:
        self.refresh()
        return copy.deepcopy(self._read_attempts()[number])

    def drop_checkpoints(self) -> None:
        """Remove the checkpoints of finished trials that the sweep does not keep."""
        if self.spec.checkpoints == "all":
            return
        kept = self._list_kept() if self.spec.checkpoints == "best" else set()
        for r in self.read_trials():
            if r.status in FINISHED and r.run_id and r.number not in kept:
                discard_checkpoint(r.run_id)

    def _list_kept(self) -> set[int]:
        """Return the trials whose checkpoints stay where those of the best do: until one is chosen, all that may be."""
        if self.spec.confirm.most_seeds and CHOICE not in self.read_notes():
            return {trial.number for trial in list_candidates(self.spec, self.read_trials())}
        settled = self.find_settled()
        return {settled.number} if settled else set()


def end_run(run_id: str | None, status: str, reason: str) -> None:
    """End the MLflow run of a trial whose process could not do so."""
    if run_id:
        tracking.Tracker(run_id).end(status, reason)
