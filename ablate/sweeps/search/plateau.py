"""Where a search can be expected to gain no more."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ablate.sweeps.search.thinning import thin_trials

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

MOST = 100  # trials that the process is fitted to, whose time grows with their cube


def bound_gain(study: Study, trials: Sequence[FrozenTrial]) -> float:
    """Return an upper bound on what any settings can be expected to gain over the best of the completed `trials`, in
    units of the objective: the regret bound of Optuna's Terminator (Makarova et al., Automatic Termination for
    Hyperparameter Optimization, 2022), from a Gaussian process. A diverged trial counts as the worst that ended with a
    number. Infinite with fewer than two of those.
    """
    import copy

    import optuna
    from optuna.terminator import RegretBoundEvaluator

    maximize = study.direction.name == "MAXIMIZE"
    completed = [trial for trial in thin_trials(trials, MOST, maximize) if trial.state.name == "COMPLETE"]
    finite = [trial.values[0] for trial in completed if math.isfinite(trial.values[0])]
    if len(finite) < 2:
        return math.inf
    worst = min(finite) if maximize else max(finite)
    shown = []
    for trial in completed:
        shown.append(copy.copy(trial))
        shown[-1].values = [trial.values[0] if math.isfinite(trial.values[0]) else worst]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return float(RegretBoundEvaluator(seed=0).evaluate(shown, study.direction))
