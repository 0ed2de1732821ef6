"""The steps after the searches of all arms: the choice among candidates, rounds of fresh seeds, and crossed runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ablate.sweeps.arms import ArmTrials
from ablate.sweeps.comparison import (
    collect_outcomes,
    compare_record,
    compare_record_effects,
    cross_params,
    find_due_looks,
    list_candidates,
    plan_round,
)
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import CROSSED, FRESH, SELECTION, Run
from ablate.sweeps.seed_runs import SeedRuns
from ablate.sweeps.seed_studies import (
    AGAINST,
    CHOICE,
    EFFECT,
    LOOKS,
    PLANNED,
    name_confirmation,
    name_crossed,
    name_selection,
)
from ablate.sweeps.spec.validation import validate_experiment
from ablate.sweeps.storage import parse_study_name, read_generation
from ablate.verdict.selection import choose_candidate

if TYPE_CHECKING:
    from optuna.storages import BaseStorage


class Confirmation:
    """The runs on further seeds that a sweep still needs. The next step is determined by the content of the storage, so
    that any number of processes agree on it; the methods are called under the lock of the storage. A step (a choice, a
    look) is taken when no run is left that it could miss, but for those that failed, which the next session tries
    again.

    Args:
        arms: the arms.
        storage: what their studies lie in.
    """

    def __init__(self, arms: Sequence[ArmTrials], storage: BaseStorage) -> None:
        self.arms, self.storage, self.spec = {arm.arm: arm for arm in arms}, storage, arms[0].spec
        self.parts: dict[str, SeedRuns] = {}
        """Name of the study -> its runs that this process knows."""
        self._crossable: dict[tuple[str, str], bool] = {}

    def advance(self) -> bool:
        """Take the next step, and return whether anything changed, so that there may be runs to start."""
        if not self.spec.confirm.most_seeds:
            return False
        record = self._read()
        changed = [] if self.spec.at_grid else [self._select(arm, record) for arm in self.arms]
        if any(changed) or self._is_under_way():
            return any(changed)
        arms, compared = collect_outcomes(record), compare_record(record)
        effects = compare_record_effects(record)
        wanted = plan_round(
            self.spec,
            arms,
            record.chosen,
            compared,
            lambda loser, winner: self._can_cross(loser, winner, record),
            effects,
        )
        changed = [self._confirm(arm, count, record) for arm, count in wanted.seeds.items()]
        changed += [self._cross(*pair, count, record) for pair, count in wanted.crossed.items()]
        if self._is_under_way():
            return any(changed)
        due = find_due_looks(self.spec, arms, wanted)
        for arm, looks in due.items():
            study = self._find_confirmation(arm, record).study
            study.set_user_attr(PLANNED, looks.planned)
            study.set_user_attr(LOOKS, list(looks.sizes))
        for arm in {*record.looks, *due} & {*wanted.seeds}:
            self._note_look(arm, record)
        return any(changed) or bool(due)

    def _find_confirmation(self, arm: str, record: SweepRecord) -> SeedRuns:
        return self.parts[name_confirmation(self._name(arm), record.chosen[arm])]

    def _note_look(self, arm: str, record: SweepRecord) -> None:
        """Record the difference that mattered at the first look, and all arms that this one was compared with: both
        could be changed with knowledge of the outcome."""
        part = self._find_confirmation(arm, record)
        if EFFECT not in part.read_notes():
            part.write_note(EFFECT, self.spec.confirm.effect)
        against = part.read_notes().get(AGAINST, [])
        if (baseline := self.spec.baselines[arm]) not in (arm, *against):
            part.write_note(AGAINST, [*against, baseline])

    def _read(self) -> SweepRecord:
        parsed = parse_study_name(next(iter(self.arms.values())).study.study_name)
        assert parsed is not None
        return replace(read_generation(self.storage, *parsed), spec=self.spec)

    def _name(self, arm: str) -> str:
        return self.arms[arm].study.study_name

    def _is_under_way(self) -> bool:
        """Return whether runs are to be started or to end."""
        tallies = [part.tally() for part in self.parts.values()]
        return any(tally.open or tally.running for tally in tallies)

    # ------------------------------------------------------------------ choosing

    def _select(self, arm: str, record: SweepRecord) -> bool:
        """Open the runs of the candidates of `arm`, or choose among them if they have ended. A choice is final."""
        study = self.arms[arm].study
        if CHOICE in self.arms[arm].read_notes():
            return False
        ranked = list_candidates(self.spec, record.search(arm))
        candidates = [trial for trial, _ in ranked]
        if len(candidates) < 2:
            if candidates:
                self._choose(arm, candidates[0], [])
            return bool(candidates)
        seeds = self.spec.selection_seeds()
        opened = [
            self._open(
                arm, name_selection(study.study_name, trial.number), SELECTION, trial.params, str(trial.number), seeds
            )
            for trial in candidates
        ]
        selected = record.runs.select(arm, SELECTION)
        ended = [selected.select(number=trial.number).outcomes() for trial in candidates]
        outcomes = [{seed: by_seed[seed] for seed in seeds if seed in by_seed} for by_seed in ended]
        if all(len(by_seed) == len(seeds) for by_seed in outcomes):
            maximize = self.spec.objective.direction == "maximize"
            best = choose_candidate([reached for _, reached in ranked], outcomes, maximize)
            self._choose(arm, candidates[best], candidates)
            return True
        return any(opened)

    def _choose(self, arm: str, chosen: Run, candidates: Sequence[Run]) -> None:
        """Record the choice; the other candidates' checkpoints are no longer needed."""
        choice = {"trial": chosen.number, "candidates": [trial.number for trial in candidates]}
        self.arms[arm].write_note(CHOICE, choice)
        self.arms[arm].drop_checkpoints()

    # ------------------------------------------------------------------ testing

    def _confirm(self, arm: str, count: int, record: SweepRecord) -> bool:
        """Open the runs of the chosen settings of `arm` on the first `count` fresh seeds."""
        name = name_confirmation(self._name(arm), record.chosen[arm])
        changed = self._open(arm, name, FRESH, record.find_settings(arm), "", self.spec.fresh_seeds(count))
        study = self.parts[name].study
        if LOOKS not in study.user_attrs:
            study.set_user_attr(LOOKS, [])
        return changed

    def _cross(self, loser: str, winner: str, count: int, record: SweepRecord) -> bool:
        """Open the runs of the loser at the winner's settings on the first `count` fresh seeds."""
        params = cross_params(self.spec, record.find_settings(loser), record.find_settings(winner))
        name = name_crossed(self._name(loser), record.chosen[loser], winner, record.chosen[winner])
        return self._open(loser, name, CROSSED, params, winner, self.spec.fresh_seeds(count))

    def _can_cross(self, loser: str, winner: str, record: SweepRecord) -> bool:
        """Return whether the loser is a valid experiment at the winner's settings."""
        if (loser, winner) not in self._crossable:
            params = cross_params(self.spec, record.find_settings(loser), record.find_settings(winner))
            self._crossable[loser, winner] = not validate_experiment(*self.spec.layers(loser), params)
        return self._crossable[loser, winner]

    def _open(self, arm: str, name: str, role: str, settings: dict[str, object], of: str, seeds: Sequence[int]) -> bool:
        """Open a study, created where it is missing, for runs on `seeds`; return whether it or they are new."""
        part = self.parts.get(name)
        if part is not None:
            return part.want(seeds)
        own = self.arms[arm]
        self.parts[name] = part = SeedRuns(own.open_further(name), self.spec, arm, own.parent, role, settings, of, own)
        part.want(seeds)
        part.recover()
        return True
