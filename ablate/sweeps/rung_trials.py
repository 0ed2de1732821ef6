"""The trials of an arm whose settings climb rungs: a trial that has ended a rung waits, without a process, until all
have; then it goes on from its checkpoint or stops. It stays one trial of Optuna all the time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ablate.config.errors import StoreError
from ablate.config.formatting import count_noun, format_number
from ablate.experiment.metrics import read_metric, shorten_metric
from ablate.sweeps.arms import ArmTrials, Tally
from ablate.sweeps.attempts import RUNGS, trial_number
from ablate.sweeps.endings import Ending, build_notes, end_run
from ablate.sweeps.leases import PAUSED, is_free, is_paused
from ablate.sweeps.runs import RungEnd
from ablate.sweeps.search.promotion import decide, read_standings
from ablate.sweeps.seed_studies import CHOICE
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.storage_lock import do_locked
from ablate.training.procedures import Result
from ablate.training.rungs import BRANCHED

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

NOTES = "at_rung"  # an attribute of a trial: what would be kept of it if it ended at its last rung


@dataclass(frozen=True)
class _Plan:
    """What is due for the settings of an arm, by the numbers of their trials."""

    due: Mapping[int, int]
    """Settings that are to train -> to which rung, from 0."""
    over: set[int]
    """Settings that have ended a rung and do not go on."""
    waiting: set[int] = field(default_factory=set)
    """Those of them that may still be chosen."""
    chosen: int | None = None
    """The one of them that was chosen, and goes on to its end."""


class RungTrials(ArmTrials):
    """The study of an arm whose settings climb rungs.

    Which trials go on follows from what the storage holds of the arm, so that any number of processes agree on it.
    Those of the last rung but one that do not go on at once may still be tested: they stop when the settings of the arm
    have been chosen, and the chosen one goes on to its end.
    """

    def __init__(self, study: Study, spec: Sweep, arm: str, parent: str) -> None:
        super().__init__(study, spec, arm, parent)
        self.rungs = spec.plan_rungs(arm)
        self._plan: _Plan | None = None  # by what was read

    def refresh(self) -> None:
        super().refresh()
        self._plan = None

    def find_length(self, trial: Trial) -> int | None:
        rung = self._find_rung(trial)
        return self.rungs[rung].updates if rung < len(self.rungs) - 1 else None

    def _find_rung(self, trial: Trial | FrozenTrial) -> int:
        """Return the rung, from 0, that a trial trains to next."""
        return len(trial.user_attrs.get(RUNGS, ()))

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

    def _stop(self, trials: Iterable[FrozenTrial]) -> None:
        """End those of `trials` that wait at a rung."""
        paused = [trial for trial in trials if is_paused(trial)]
        for trial in paused:
            rung = self._find_rung(trial)
            kept = count_noun(self.rungs[rung].settings, "setting")
            reason = f"pruned at the rung of {self.rungs[rung - 1].updates} updates, from which {kept} went on"
            self._write_ending(trial, Ending("PRUNED", "pruned", reason, notes=trial.user_attrs.get(NOTES, {})))
            with contextlib.suppress(StoreError):
                end_run(trial.user_attrs.get("run_id"), "pruned", reason)
        if paused:
            self.drop_checkpoints()

    def free_orphans(self) -> int:
        lost = super().free_orphans()
        plan = self.decide()
        losers = plan.over - plan.waiting - {plan.chosen}
        self._stop(trial for trial in self._list_last_attempts() if trial_number(trial) in losers)
        return lost

    def _may_continue(self, trial: FrozenTrial) -> bool:
        number, plan = trial_number(trial), self.decide()
        return number == plan.chosen or self._find_rung(trial) <= plan.due.get(number, -1)

    def decide(self) -> _Plan:
        """Return which settings are to train and which are to stop."""
        if self._plan is None:
            self._plan = self._make_plan()
        return self._plan

    def _make_plan(self) -> _Plan:
        notes = self.read_notes()
        standings = read_standings(self.rungs, self.read_trials())
        maximize = self.spec.objective.direction == "maximize"
        decisions = decide(standings, [rung.settings for rung in self.rungs], maximize)
        due = {number: len(standings[number].ended) for number in decisions.train}
        near = {number for number in decisions.stop if len(standings[number].ended) == len(self.rungs) - 1}
        if CHOICE in notes:
            chosen = notes[CHOICE]["trial"]
            return _Plan(due, {*decisions.stop}, chosen=chosen if chosen in near else None)
        return _Plan(due, {*decisions.stop}, waiting=near if self.spec.confirm.most_seeds else set())


def build_arm(study: Study, spec: Sweep, arm: str, parent: str) -> ArmTrials:
    """Return the trials of `arm`, of the kind that its method of search needs."""
    kind = RungTrials if spec.plan_rungs(arm) else ArmTrials
    return kind(study, spec, arm, parent)
