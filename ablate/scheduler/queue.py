"""The order of a sweep's runs: its stages choose the next one by the content of the storage alone, so that
any number of processes, each with a queue of its own, agree on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ablate.config.errors import StoreError, SweepError
from ablate.scheduler.leases import (
    ENDED,
    OWNER,
    SILENT,
    Watch,
    build_owner,
    is_free,
    is_orphan,
    read_owner,
)
from ablate.scheduler.samplers import build_sampler, to_distributions
from ablate.scheduler.storage import do_locked
from ablate.scheduler.studies import AT_RUNG, RUN, SESSION, Ending, Writer, create_study, end_run
from ablate.scheduler.tasks import Task
from ablate.sweeps.runs import SEARCH, Run
from ablate.sweeps.search.space import replace_repeated
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.stages import STOP, Decision, Step, Wanted, find_step
from ablate.training.runs import discard_checkpoint

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

T = TypeVar("T")


class Queue(Writer):
    """The order of the runs of one generation of a sweep, in a storage. The arguments are those of `Writer`."""

    def __init__(self, storage: BaseStorage, name: str, generation: int, spec: Sweep) -> None:
        super().__init__(storage, name, generation, spec)
        self._watch = Watch()

    def _do_locked(self, step: Callable[[], T]) -> T:
        """Return the result of `step`, called under the lock of the storage: it sees what others have written, and they
        write nothing meanwhile."""

        def refresh_first() -> T:
            self.studies.refresh()
            return step()

        return do_locked(self.storage, refresh_first)

    # ------------------------------------------------------------------ what comes next

    def take(self) -> Task | None:
        """Return the next run, owned by this process; None if there is nothing to start now."""

        def step() -> Task | None:
            self.free_orphans()  # processes that died since would count as running
            wanted = self._advance().pick()
            return None if wanted is None else self._begin(wanted)

        return self._do_locked(step)

    def must_wait(self) -> bool:
        """Return whether there are runs going on, here or elsewhere, on which the end of the sweep depends, or runs
        that can be started since the call of `take`. Those of processes that have ended are freed."""

        def step() -> bool:
            if self.free_orphans():
                return True
            now = self._advance()
            return now.is_running or now.pick() is not None

        return self._do_locked(step)

    def begin_session(self) -> int:
        """Count a new session, in which runs are tried again that failed in earlier ones; return how many trials of
        the search earlier sessions left: of processes that have ended, and failed ones."""

        def step() -> int:
            failed = self.studies.read().runs.select(stage=SEARCH, status="failed")
            session = self.studies.session + 1
            for arm in self.spec.all_arms:
                self.write_note(arm, SESSION, session)
            lost = self.free_orphans()
            wanted = [one for lane in self._advance().lanes for one in lane.wanted]
            again = {(one.arm, one.number) for one in wanted if one.stage == SEARCH}
            for arm in self.spec.all_arms:  # of the trial that ended last, if the session ended before this
                self.drop_checkpoints(arm)
            return lost + sum((run.arm, run.number) in again for run in failed)

        return self._do_locked(step)

    def _advance(self) -> Step:
        """Return where the sweep stands, once what is decided is written down."""
        while True:
            record = self.studies.read()
            if record.deleted:  # it cannot be told apart from a study that never was
                raise SweepError(f"The study {record.deleted[0]} was deleted while the sweep runs.")
            step = find_step(record)
            if not step.decisions:
                return step
            for decision in step.decisions:
                self._write(decision)

    def _write(self, decision: Decision) -> None:
        if decision.kind != STOP:
            self.write_note(decision.arm, decision.kind, decision.content)
            self.drop_checkpoints(decision.arm)  # those of other candidates are no longer needed
            return
        study = f"{self.prefix}{decision.arm}"
        wanted = Wanted(decision.arm, SEARCH, decision.content["number"])
        trial = self.studies.find_attempt(wanted)
        assert trial is not None
        reason, notes = decision.content["reason"], trial.user_attrs.get(AT_RUNG, {})
        self.write_ending(study, trial, Ending("PRUNED", "pruned", reason, notes=notes))
        with contextlib.suppress(StoreError):
            end_run(trial.user_attrs.get("run_id"), "pruned", reason)
        self.drop_checkpoints(decision.arm)

    # ------------------------------------------------------------------ beginning a run

    def _begin(self, wanted: Wanted) -> Task:
        """Return a run, owned by this process: a new one, one that goes on, or a further try of one that failed."""
        study = self._open(wanted)
        begun = self.studies.find_attempt(wanted)
        if begun is not None and is_free(begun):
            trial_id = self.studies.find_trial_id(study, begun.number)
            owner = build_owner(begun)
        else:
            attributes, owner = self._describe(wanted), build_owner(None)
            if begun is not None:
                attributes["continues"] = begun.number
                if run_id := begun.user_attrs.get("run_id"):
                    discard_checkpoint(run_id)  # it begins anew
            trial_id = self._create(study, wanted, attributes, owner, begun)
        trial = self.storage.get_trial(trial_id)
        self.abandoned.add((study, trial.number))  # unless all of this is written: the database may go away
        params = wanted.params
        if wanted.stage == SEARCH and not trial.params.keys() >= self.spec.space(wanted.arm).keys():
            params = self._sample(study, trial_id, wanted)
        if read_owner(trial) != owner:
            self.storage.set_trial_user_attr(trial_id, OWNER, owner)
        self.studies.refresh()
        self.abandoned.discard((study, trial.number))
        return Task(self, replace(wanted, params=params), study, trial.number, trial_id, owner)

    def _describe(self, wanted: Wanted) -> dict[str, Any]:
        """Return the attributes of the trial of a run that identify it."""
        if wanted.stage == SEARCH:
            return {"number": wanted.number}
        return {RUN: {"stage": wanted.stage, "number": wanted.number, "params": wanted.params}, "seed": wanted.seed}

    def _create(
        self,
        study: str,
        wanted: Wanted,
        attributes: Mapping[str, Any],
        owner: Mapping[str, Any],
        before: FrozenTrial | None,
    ) -> int:
        """Add the trial of a run, and return its id: in one write with its settings and its owner, where no sampler
        chooses some of them."""
        from optuna.distributions import IntDistribution
        from optuna.trial import TrialState, create_trial

        if wanted.stage == SEARCH:
            distributions = to_distributions(self.spec.space(wanted.arm))
            params = dict(before.params) if before else wanted.params  # a sampler's are those of the first attempt
        else:
            distributions, params = {"seed": IntDistribution(0, 2**32 - 1)}, {"seed": wanted.seed}
        whole = params.keys() >= distributions.keys()
        known = before.system_attrs if before else {}
        trial = create_trial(
            state=TrialState.RUNNING,
            params=params if whole else {},
            distributions=distributions if whole else {},
            user_attrs={**attributes, **({OWNER: dict(owner)} if whole else {})},
            system_attrs={**known, **({} if whole else {"fixed_params": params})},
        )
        return self.storage.create_new_trial(self.studies.find_id(study), trial)

    def _sample(self, name: str, trial_id: int, wanted: Wanted) -> dict[str, Any]:
        """Return the settings of a trial of a search of which a sampler chooses some."""
        from ablate.scheduler.optuna_private import open_trial

        study, space = self.load(name), self.spec.space(wanted.arm)
        study.sampler = build_sampler(self.spec.sampler, wanted.number)
        seed = self.spec.sampler.derive_seed(wanted.number)

        def choose(point: dict[str, Any], free: Sequence[str], taken: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
            return replace_repeated(point, free, taken, space, seed)

        known = self.storage.get_all_trials(self.studies.find_id(name), deepcopy=False)
        return dict(open_trial(study, trial_id, to_distributions(space), known, choose).params)

    def _open(self, wanted: Wanted) -> str:
        """Return the study of a run, created if missing."""
        study = self.studies.name_of(wanted)
        if study not in self.studies.studies:
            create_study(self.storage, study, self.spec)
            self.note_studies(wanted.arm, [study])
        return study

    # ------------------------------------------------------------------ runs without a process

    def free_orphans(self) -> int:
        """Free the runs of processes that have ended or, on other machines, have given no sign of life for minutes;
        return their number. It is called by one process at a time, as `take` is."""
        lost = 0
        for study in self.studies.studies:
            for trial in self.studies.list_attempts(study):
                if trial.state.name != "RUNNING" or is_free(trial):
                    continue
                if is_orphan(trial) or (study, trial.number) in self.abandoned:
                    reason = ENDED
                elif self._watch.is_silent((study, trial.number), trial):
                    reason = SILENT
                else:
                    continue
                self.free_lost(study, trial, reason)
                lost += 1
        return lost

    def list_orphans(self) -> list[Run]:
        """Return the runs whose process was on this machine and has ended."""
        self.studies.refresh()
        return [
            self.studies.translate(study, trial)
            for study in self.studies.studies
            for trial in self.studies.list_attempts(study)
            if trial.state.name == "RUNNING" and is_orphan(trial)
        ]
