"""The trials of an Optuna study, in which a trial that was interrupted has several attempts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

ENDING = "ending"  # the attribute of a trial that says how it ended

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.trial import FrozenTrial


def list_last_attempts(frozen: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the last attempts at the trials of a study."""
    continued = {trial.user_attrs["continues"] for trial in frozen if "continues" in trial.user_attrs}
    return [trial for trial in frozen if trial.number not in continued] if continued else list(frozen)


def trial_number(trial: FrozenTrial | Trial) -> int:
    """Return the number of a trial in MLflow and in the report: its index among the trials of its arm."""
    return int(trial.user_attrs.get("number", trial.number))


def read_trial_notes(trial: FrozenTrial) -> dict[str, Any]:
    """Return the notes on a trial and its result; in older stores each part of the result is a note."""
    return {**trial.user_attrs, **trial.user_attrs.get(ENDING, {})}


def renumber(trial: FrozenTrial) -> FrozenTrial:
    """A copy of `trial` with our number."""
    shown = copy.copy(trial)
    shown.number = trial_number(trial)
    return shown
