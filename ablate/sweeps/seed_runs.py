"""The runs of the settings of one trial on given seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablate.sweeps.arms import ArmTrials, Tally
from ablate.sweeps.runs import CROSSED, FINISHED, FRESH, SELECTION, Runs
from ablate.sweeps.search.pruners import NoPruner
from ablate.sweeps.search.space import Range, Space
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.storage import read_trial, trial_status

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial


class SeedRuns(ArmTrials):
    """The settings of a trial on given seeds: no search, no pruning, and so no optimistic selection.

    Args:
        study: Optuna's.
        spec: the sweep.
        arm: the arm's name.
        parent: the arm's run in MLflow.
        role: SELECTION, FRESH or CROSSED.
        settings: those of the trial, over those of the arm.
        name: what distinguishes its runs from others of the role: the trial, or the arm whose settings these are.
        search: the search of the arm, which counts the sessions.
    """

    def __init__(
        self,
        study: Study,
        spec: Sweep,
        arm: str,
        parent: str,
        role: str,
        settings: Mapping[str, Any],
        name: str,
        search: ArmTrials,
    ) -> None:
        super().__init__(study, spec, arm, parent)
        self.search = search
        self.role, self.settings, self.name = role, settings, name
        self.seeds: list[int] = []
        self._ended: Tally | None = None  # where all have: nothing of it changes any more
        study.pruner = NoPruner().build(0, 0)

    def want(self, seeds: Sequence[int]) -> bool:
        """Set the required seeds, and return whether they changed."""
        if self.seeds == list(seeds):
            return False
        self.seeds, self._ended = list(seeds), None
        return True

    def tags(self, trial: Trial) -> dict[str, str]:
        more = {SELECTION: "ablate.candidate", CROSSED: "ablate.settings_of"}
        return {**super().tags(trial), **({more[self.role]: self.name} if self.role in more else {})}

    def params(self, trial: Trial) -> dict[str, Any]:
        return {**self.settings, **trial.params}

    def count_remaining(self, trials: Runs) -> int:
        under_way = {trial.params["seed"] for trial in trials if trial.status in (*FINISHED, "running")}
        return sum(seed not in under_way for seed in self.seeds)

    def free_orphans(self) -> int:
        return 0 if self._ended else super().free_orphans()

    def tally(self) -> Tally:
        if self._ended:
            return self._ended
        statuses = {
            read_trial(trial, self.arm).params["seed"]: trial_status(trial) for trial in self._list_last_attempts()
        }
        counts = Counter(statuses.values())
        tried = {seed for seed, status in statuses.items() if status in (*FINISHED, "running", "failed")}
        left = sum(seed not in tried for seed in self.seeds)
        tally = Tally(sum(counts[status] for status in FINISHED), counts["running"], left)
        if self.seeds and not left and tally.finished == len(statuses):
            self._ended = tally
        return tally

    def _read_session(self) -> int:
        return self.search._read_session()

    def _list_kept(self) -> set[int]:
        best = self.find_best() if self.role == FRESH else None
        return {best.number} if best else set()

    def _may_retry(self, trial: FrozenTrial) -> bool:
        return read_trial(trial, self.arm).params["seed"] in self.seeds

    def _pick_fixed(self, number: int) -> dict[str, Any]:
        taken = {trial.params["seed"] for trial in self.read_trials()}
        return {"seed": next(seed for seed in self.seeds if seed not in taken)}

    @property
    def _space(self) -> Space:
        return {"seed": Range(low=0, high=2**32 - 1)}
