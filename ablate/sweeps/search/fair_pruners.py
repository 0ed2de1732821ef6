"""Optuna's pruners, adapted so that they treat all arms equally, and a resumed trial like an uninterrupted one.
Unadapted, they count earlier attempts at a trial as competitors, and Hyperband draws a trial's bracket from the name of
its study and the number of the attempt, so that the same trial of two arms is pruned by different rules.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from optuna.pruners import BasePruner, HyperbandPruner

from ablate.sweeps.attempts import list_last_attempts, renumber

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, TrialState


class ArmView:
    """The view of an arm's study that a pruner gets: each trial once, under our number, and nothing that names the arm.

    Args:
        study: Optuna's.
        among: whether a trial is shown.
    """

    study_name = ""

    def __init__(self, study: Study, among: Callable[[FrozenTrial], bool] = lambda trial: True) -> None:
        self.study, self.among = study, among
        self.direction, self._storage = study.direction, study._storage

    def get_trials(self, deepcopy: bool = True, states: Container[TrialState] | None = None) -> list[FrozenTrial]:
        """The trials, of the given states or of all."""
        shown = (renumber(trial) for trial in list_last_attempts(self.study.get_trials(deepcopy=False)))
        return [trial for trial in shown if (states is None or trial.state in states) and self.among(trial)]


class FairPruner(BasePruner):
    """`pruner` on an `ArmView` of the study."""

    def __init__(self, pruner: BasePruner) -> None:
        self.pruner = pruner

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        view: Any = ArmView(study)
        return self.pruner.prune(view, renumber(trial))


class FairHyperband(HyperbandPruner):
    """Optuna's, with brackets that can be taken out of an `ArmView`."""

    def _create_bracket_study(self, study: Any, bracket_id: int) -> Any:
        return ArmView(study.study, lambda trial: self._get_bracket_id(study, trial) == bracket_id)
