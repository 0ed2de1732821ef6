"""The trials of an arm whose settings climb rungs: a trial that has ended a rung waits, without a process, until all
have; then it goes on from its checkpoint or stops. It stays one trial of Optuna all the time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ablate.config.errors import ConfigError, Problem, StoreError
from ablate.config.formatting import count_noun, format_number
from ablate.experiment.metrics import read_metric, shorten_metric
from ablate.sweeps.arms import ArmTrials, Tally
from ablate.sweeps.attempts import RUNGS, trial_number
from ablate.sweeps.endings import Ending, build_notes, end_run
from ablate.sweeps.leases import PAUSED, is_free, is_paused
from ablate.sweeps.search.promotion import Decisions, decide, read_standings
from ablate.sweeps.seed_studies import CHOICE
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.storage_lock import do_locked
from ablate.training.procedures import Result
from ablate.training.rungs import BRANCHED
from ablate.verdict.outcomes import RungEnd

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

NOTES = "at_rung"  # an attribute of a trial: what would be kept of it if it ended at its last rung


class RungTrials(ArmTrials):
    """The study of an arm whose settings climb rungs.

    Which trials go on follows from what the storage holds of the arm, so that any number of processes agree on it.
    Those of the last rung but one that do not go on at once may still be tested: they stop when the settings of the arm
    have been chosen, and the chosen one goes on to its end.
    """

    def __init__(self, study: Study, spec: Sweep, arm: str, parent: str) -> None:
        super().__init__(study, spec, arm, parent)
        self.rungs = spec.plan_rungs(arm)
        self._decisions: Decisions | None = None  # of what was read

    def refresh(self) -> None:
        super().refresh()
        self._decisions = None

    def find_length(self, trial: Trial) -> int | None:
        ended = len(trial.user_attrs.get(RUNGS, ()))
        return self.rungs[ended].updates if ended < len(self.rungs) - 1 else None

    def free_orphans(self) -> int:
        lost = super().free_orphans()
        self._stop_losers()
        return lost

    def tally(self) -> Tally:
        tally, frozen = super().tally(), self._list_last_attempts()
        held = sum(is_free(trial) and not self._may_continue(trial) for trial in frozen)
        return Tally(tally.finished, tally.running, tally.open, min(held, tally.open))

    def record_result(self, trial: Trial, result: Result) -> None:
        if result.status == "paused":
            self._record_rung(trial, result)
        else:
            super().record_result(trial, result)

    def _record_rung(self, trial: Trial, result: Result) -> None:
        """Write down what a trial has reached at its rung, and leave it to wait."""
        metric = self.spec.objective.metric
        value = read_metric(result.metrics, metric)
        if value is None:
            self.record_failure(trial, f"its validation at the rung has no {metric}")
            return
        length = self.find_length(trial)
        assert length is not None
        rung = RungEnd(length, value, dict(result.metrics), int(result.facts.get(BRANCHED, 0)))
        reason = f"at the rung of {count_noun(length, 'update')}, {shorten_metric(metric)} {format_number(value)}"

        def write() -> None:
            frozen, notes = self._read_own(trial), build_notes(trial, result)
            trial.set_user_attr(NOTES, notes)
            trial.set_user_attr("seconds_before", notes["seconds"])
            trial.set_user_attr(RUNGS, [*frozen.user_attrs.get(RUNGS, ()), rung._asdict()])
            self._free(frozen, reason, {PAUSED: True})

        do_locked(self.study._storage, write)

    def _may_continue(self, trial: FrozenTrial) -> bool:
        return trial_number(trial) in self._decide().train

    def _decide(self) -> Decisions:
        """Return which trials are to train and which are to stop."""
        if self._decisions is None:
            self._decisions = self._make_decisions()
        return self._decisions

    def _make_decisions(self) -> Decisions:
        notes = self.read_notes()
        standings = read_standings(self.read_trials(), notes.get("trivial_loss"))
        maximize = self.spec.objective.direction == "maximize"
        due = decide(standings, [rung.settings for rung in self.rungs], maximize)
        chosen = notes[CHOICE]["trial"] if CHOICE in notes else None
        if chosen is None and not self.spec.confirm.most_seeds:
            return due
        near = {number for number in due.stop if len(standings[number].ended) == len(self.rungs) - 1}
        kept = near if chosen is None else near & {chosen}
        return Decisions([*due.train, *near & {chosen}], [number for number in due.stop if number not in kept])

    def _stop_losers(self) -> None:
        """End the trials that do not go on."""
        losers = {*self._decide().stop}
        for trial in self._list_last_attempts():
            if trial_number(trial) in losers and is_paused(trial):
                ended = len(trial.user_attrs[RUNGS])
                kept = count_noun(self.rungs[ended].settings, "setting")
                reason = f"pruned at the rung of {self.rungs[ended - 1].updates} updates, from which {kept} went on"
                self._write_ending(trial, Ending("PRUNED", "pruned", reason, notes=trial.user_attrs.get(NOTES, {})))
                with contextlib.suppress(StoreError):
                    end_run(trial.user_attrs.get("run_id"), "pruned", reason)
        if losers:
            self.drop_checkpoints()


def build_arm(study: Study, spec: Sweep, arm: str, parent: str) -> ArmTrials:
    """Return the trials of `arm`, of the kind that its method of search needs. Raises ConfigError for rungs on several
    seeds, which have trials for one only."""
    if (seeds := spec.method.most_seeds) > 1:
        text = (
            "settings can be planned on several seeds, and not trained yet. Accepted: 1; confirm.candidates and "
            "confirm.selection_seeds compare the best settings on further seeds"
        )
        raise ConfigError([Problem("search.seeds", text, seeds)], f"sweep {spec.name}")
    kind = RungTrials if spec.plan_rungs(arm) else ArmTrials
    return kind(study, spec, arm, parent)
