"""The trials of one arm: choosing the next trial, and recording the end of a trial."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ablate.config.errors import SweepError, TakenOverError
from ablate.experiment.metrics import read_metric
from ablate.sweeps.attempts import ENDING, list_last_attempts, open_trial, read_trial_notes, trial_number
from ablate.sweeps.comparison import list_candidates
from ablate.sweeps.donors import inherit_donors, pin_donors
from ablate.sweeps.endings import Ending, build_notes, end_run
from ablate.sweeps.leases import ENDED, SILENT, Watch, claim, count_losses, is_free, is_orphan, read_owner, release
from ablate.sweeps.records import count_remaining
from ablate.sweeps.runs import FINISHED, Run, Runs
from ablate.sweeps.search.space import Space, list_cells, replace_repeated, to_distributions
from ablate.sweeps.seed_studies import CHOICE, INPUTS, STUDIES, label_run
from ablate.sweeps.spec.references import find_own_donor
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.storage import TrialReader, create_study, read_trial, trial_status
from ablate.sweeps.storage_lock import do_locked
from ablate.training.procedures import Result
from ablate.training.runs import discard_checkpoint

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

    from ablate.experiment.tree import Experiment

SESSION = "session"  # of the study of an arm: the number of times that a command began or continued the sweep


@dataclass(frozen=True)
class Tally:
    """The counts of an arm's trials."""

    finished: int
    running: int
    open: int
    """Number of trials still to be started or continued; failed trials are retried in the next session."""
    held: int = 0
    """Those of them that wait until others have ended their rung."""

    @property
    def started(self) -> int:
        """Trials finished or running."""
        return self.finished + self.running

    @property
    def can_start(self) -> bool:
        """Whether a trial can be started or continued now."""
        return self.open > self.held


class ArmTrials:
    """The study of one arm and its remaining budget.

    Args:
        study: Optuna's.
        spec: the sweep.
        arm: the arm's name.
        parent: the arm's run in MLflow.
    """

    def __init__(self, study: Study, spec: Sweep, arm: str, parent: str) -> None:
        self.study, self.spec, self.arm, self.parent = study, spec, arm, parent
        base = spec.base(arm)
        steps = base.trainer.max_steps
        study.pruner = spec.pruner.build(steps, base.schedule.warmup(steps))
        self._trials: list[FrozenTrial] | None = None
        self._records: Runs | None = None
        self._reader = TrialReader(arm)
        self._notes: dict[str, Any] | None = None
        self._abandoned: set[int] = set()  # numbers of trials that `ask` could not hand out
        self._watch = Watch()

    # ------------------------------------------------------------------ what a trial is

    role = "trial"  # the tag `ablate.role` of its run

    def label(self, trial: Trial) -> str:
        """Return the name of a trial, in MLflow and on the screen."""
        return label_run(self.study.study_name, trial_number(trial), trial.params)

    def tags(self, trial: Trial) -> dict[str, str]:
        """Return the tags of its run in MLflow, which no other run of the sweep has."""
        return {"ablate.role": self.role, "ablate.arm": self.arm, "ablate.trial": str(trial_number(trial))}

    def params(self, trial: Trial) -> dict[str, Any]:
        """Return the settings of a trial merged over those of the arm: dotted path -> value."""
        return trial.params

    def build_experiment(self, trial: Trial) -> Experiment:
        """Return the experiment that a trial trains."""
        return pin_donors(self.spec.at(self.arm, self.params(trial)), self.study)

    def find_length(self, trial: Trial) -> int | None:
        """Return the updates of the rung that a trial trains to; None: to its end."""
        return None

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
            try:
                self._trials = self.study.get_trials(deepcopy=False)
            except KeyError:  # it cannot be told apart from a study that never was
                raise SweepError(f"The study {self.study.study_name} was deleted while the sweep runs.") from None
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

    def note_studies(self, names: Iterable[str]) -> None:
        """Write down that studies of the sweep were made, so that it is seen if one is deleted."""
        before = self.read_notes().get(STUDIES, [])
        if new := [name for name in names if name not in before]:
            self.write_note(STUDIES, [*before, *new])

    def note_inputs(self, inputs: Mapping[str, str]) -> None:
        """Write down what runs of the arm read besides their settings, where it is not known yet."""
        before = self.read_notes().get(INPUTS, {})
        if inputs.keys() - before.keys():
            self.write_note(INPUTS, {**inputs, **before})

    def open_further(self, name: str) -> Study:
        """Return the study `name` of runs of the arm on further seeds, created if missing."""
        study = create_study(self.study._storage, name, self.spec)
        inherit_donors(study, self.study)
        self.note_studies([name])
        return study

    def read_trials(self) -> Runs:
        """Return the trials so far."""
        if self._records is None:
            rows = tuple(self._reader.read(self._read_attempts()))
            self._records = Runs(rows, self.read_notes().get("trivial_loss"))
        return self._records

    def _list_open(self) -> list[FrozenTrial]:
        """Return the trials that have not ended, and some that have: without looking through thousands of these."""
        return self._reader.list_open(self._read_attempts())

    def _list_last_attempts(self) -> list[FrozenTrial]:
        return list_last_attempts(self._read_attempts())

    # ------------------------------------------------------------------ which comes next

    def recover(self) -> int:
        """Put up what an earlier session left, and return the number of those trials: of processes that have ended, and
        failed ones."""
        again, session = self.free_orphans(), self._read_session()
        for trial in self._list_last_attempts():
            notes, status = read_trial_notes(trial), trial_status(trial)
            if status == "failed" and notes.get(SESSION, 0) < session and self._may_retry(trial):
                self._retry(trial)
                again += 1
        self.drop_checkpoints()  # of the trial that ended last, if the session ended before this
        return again

    def begin_session(self) -> None:
        """Count a new session: what fails from now on is retried in the next one."""
        self.write_note(SESSION, self.read_notes().get(SESSION, 0) + 1)

    def _read_session(self) -> int:
        return int(self.read_notes().get(SESSION, 0))

    def _may_retry(self, trial: FrozenTrial) -> bool:
        """Return whether the budget allows retrying a failed trial."""
        return self.count_remaining(self.read_trials()) > 0

    def free_orphans(self) -> int:
        """Free the trials of processes that have ended or, on other machines, have given no sign of life for minutes;
        return their number. It is called by one process at a time, as `ask` is."""
        lost = 0
        for trial in self._list_open():
            if trial.state.name != "RUNNING" or is_free(trial):
                continue
            if is_orphan(trial) or trial.number in self._abandoned:
                reason = ENDED
            elif self._watch.is_silent(trial):
                reason = SILENT
            else:
                continue
            self._free_lost(trial, reason)
            lost += 1
        return lost

    def _free_lost(self, trial: FrozenTrial, reason: str) -> None:
        """Free a trial that lost its process or, if that happened too often without a validation in between, record it
        as failed."""
        counts, too_often = count_losses(trial)
        if too_often:
            text = f"its process was killed or crashed, {too_often} times without progress"
            self._write_ending(trial, Ending("FAIL", "failed", text))
            end_run(trial.user_attrs.get("run_id"), "failed", text)
        else:
            self._free(trial, reason, counts)

    def _free(self, trial: FrozenTrial, reason: str, more: Mapping[str, Any] | None = None) -> None:
        """Leave a trial without a process, to be continued by the next that asks."""
        release(self.study._storage, trial, reason, more)
        self._abandoned.discard(trial.number)
        self.refresh()

    def count_remaining(self, trials: Runs) -> int:
        """Return how many trials the budget still allows, in addition to the finished and running ones of `trials`."""
        return count_remaining(self.spec, self.arm, trials, self.trial_items)

    @cached_property
    def trial_items(self) -> int:
        """Tokens or images of a whole trial, as the session wrote down."""
        return int(self.read_notes().get("trial_items", 1))

    def tally(self) -> Tally:
        """Return the counts of its trials, from one read of the storage."""
        trials = self.read_trials()
        counts = Counter(trial.status for trial in trials)
        done, running = sum(counts[status] for status in FINISHED), counts["running"]
        return Tally(done, running, max(0, self.count_remaining(trials) - counts["failed"]))

    def ask(self) -> Trial:
        """Return the next trial, owned by this process: an interrupted one, one that is to be retried, or a new
        point."""
        self.free_orphans()  # what died since is counted as open: without this a new point would take its place
        begun = next((trial for trial in self._list_open() if is_free(trial) and self._may_continue(trial)), None)
        waiting = next((trial for trial in self._list_open() if trial.state.name == "WAITING"), None)
        unfinished = begun or waiting
        number = trial_number(unfinished) if unfinished else len(self.read_trials())
        known = self._read_attempts()
        self.study.sampler = self.spec.sampler.build(number)
        trial_id = begun._trial_id if begun else self.study._pop_waiting_trial_id() if waiting else None
        if trial_id is None:
            trial_id = self._add_trial(number)
        seed = self.spec.sampler.derive_seed(number)

        def choose(point: dict[str, Any], free: Sequence[str], taken: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
            return replace_repeated(point, free, taken, self._space, seed)

        trial = open_trial(self.study, trial_id, to_distributions(self._space), known, choose)
        self._abandoned.add(trial.number)  # unless all of this is written: the database may go away
        claim(trial, begun)
        self.refresh()
        self._abandoned.discard(trial.number)
        return trial

    def _add_trial(self, number: int) -> int:
        """Add the new trial `number`, begun and free, and return its id."""
        from optuna.trial import TrialState, create_trial

        fixed = {"fixed_params": self._pick_fixed(number)}
        trial = create_trial(state=TrialState.RUNNING, system_attrs=fixed, user_attrs={"number": number})
        return self.study._storage.create_new_trial(self.study._study_id, trial)

    def _may_continue(self, trial: FrozenTrial) -> bool:
        """Return whether a trial that was begun, and has no process, goes on now."""
        return True

    def _pick_fixed(self, number: int) -> dict[str, Any]:
        """Return the values of the new trial `number` that the sampler does not choose."""
        if self.spec.sampler.kind == "grid":
            taken = [r.params for r in self.read_trials()]  # failed ones too: the next session tries those
            return next(cell for cell in list_cells(self.spec.space(self.arm)) if cell not in taken)
        return self.spec.fixed[number] if number < len(self.spec.fixed) else {}

    @property
    def _space(self) -> Space:
        """What each trial is chosen from."""
        return self.spec.space(self.arm)

    def should_prune(self, trial: Trial) -> bool:
        """Return whether `trial` must be stopped now. At least one trial of an arm always runs to its end."""
        if not trial.should_prune():
            return False
        self.refresh()
        others = [r.status for r in self.read_trials() if r.number != trial_number(trial)]
        return "completed" in others or "running" in others

    def report_missing(self, trial: Trial, validations: Mapping[int, Mapping[str, float]]) -> None:
        """Report the validations of a trial that its run knows, and a killed process did not write down."""
        known = self._read_frozen(trial.number).intermediate_values
        for step, metrics in validations.items():
            if step not in known and (value := read_metric(metrics, self.spec.objective.metric)) is not None:
                trial.report(value, step)

    def find_best(self) -> Run | None:
        """Return the completed trial with the best objective so far."""
        return self.read_trials().find_best(self.spec.objective.direction)

    def find_settled(self) -> Run | None:
        """Return the trial that represents the arm: the one chosen for the test, otherwise the best so far."""
        if choice := self.read_notes().get(CHOICE):
            return next((trial for trial in self.read_trials() if trial.number == choice["trial"]), None)
        return self.find_best()

    def list_candidates(self) -> list[Run]:
        """Return the best trials so far, which may be compared on selection seeds."""
        return [trial for trial, _ in list_candidates(self.spec, self.read_trials())]

    # ------------------------------------------------------------------ how it ends

    def record_result(self, trial: Trial, result: Result) -> None:
        """Record a result. A diverged run counts as the worst, so that the search learns from it."""
        value: float | None = None
        if result.status == "completed":
            value = read_metric(result.metrics, self.spec.objective.metric)
            if value is None:  # of a run that was begun when its checkpoints had no scores
                self.record_failure(trial, f"its last validation has no {self.spec.objective.metric}")
                return
        elif result.status == "diverged":
            value = math.inf if self.spec.objective.direction == "minimize" else -math.inf
        state = "PRUNED" if result.status == "pruned" else "COMPLETE"
        self._tell(trial, Ending(state, result.status, result.reason, value, build_notes(trial, result)))
        self.drop_checkpoints()

    def record_failure(self, trial: Trial, reason: str) -> None:
        """Record a failure; the arm's other trials continue."""
        self._tell(trial, Ending("FAIL", "failed", reason))

    def let_go(self, trial: Trial, reason: str, seconds: float = 0.0) -> None:
        """Free a trial that this process interrupted after `seconds` of training, to go on from its last checkpoint.
        Raises TakenOverError if it is another process's by now."""

        def free() -> None:
            frozen = self._read_own(trial)
            trial.set_user_attr("seconds_before", frozen.user_attrs.get("seconds_before", 0.0) + seconds)
            self._free(frozen, reason)

        do_locked(self.study._storage, free)

    def record_loss(self, trial: Trial) -> None:
        """Free a trial whose process goes on, but lost the other ranks of its group."""
        reason = "other ranks of its group were lost"
        do_locked(self.study._storage, lambda: self._free_lost(self._read_own(trial), reason))

    def _read_own(self, trial: Trial) -> FrozenTrial:
        """Return a trial as it is in the storage. Raises TakenOverError if this process does not own it any more."""
        frozen = self._read_frozen(trial.number)
        if frozen.state.name != "RUNNING" or read_owner(frozen) != read_owner(trial):
            raise TakenOverError(f"{self.label(trial)} was taken over by another process.")
        return frozen

    def _tell(self, trial: Trial, ending: Ending) -> None:
        """Write the end of a trial that this process owns. Raises TakenOverError if it does not any more."""

        def write() -> None:
            frozen = self._read_frozen(trial.number)
            if frozen.state.name == ending.state and read_owner(frozen) == read_owner(trial):
                return  # it was written before the connection broke, and this step began anew
            self._write_ending(self._read_own(trial), ending)

        do_locked(self.study._storage, write)

    def _write_ending(self, trial: FrozenTrial, ending: Ending) -> None:
        from optuna.trial import TrialState

        note = {"status": ending.status, "reason": ending.reason, **ending.notes}  # in one write: it is there whole
        if ending.status == "failed":
            note[SESSION] = self._read_session()
        self.study._storage.set_trial_user_attr(trial._trial_id, ENDING, note)
        self.study.tell(trial.number, ending.value, state=TrialState[ending.state])
        self.refresh()

    def _retry(self, trial: FrozenTrial) -> None:
        """Add a trial with the settings of one that failed, which begins anew."""
        from optuna.trial import TrialState, create_trial

        notes = {"continues": trial.number, "number": trial_number(trial)}
        params = read_trial(trial, self.arm).params
        if not params.keys() >= self._space.keys():  # killed in between: the rest is proposed once more
            params = trial.system_attrs.get("fixed_params", {})
        # what samplers keep of a trial is that of its first attempt
        state, attributes = TrialState.WAITING, {**trial.system_attrs, "fixed_params": params}
        self.study.add_trial(create_trial(state=state, system_attrs=attributes, user_attrs=notes))
        self.refresh()
        if run_id := trial.user_attrs.get("run_id"):
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
            return {trial.number for trial in self.list_candidates()}
        settled = self.find_settled()
        return {settled.number} if settled else set()
