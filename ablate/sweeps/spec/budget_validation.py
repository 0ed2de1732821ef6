"""Checks of the budget: that a cap leaves room for a verdict, and that the plateau rule can end a search."""

from __future__ import annotations

from collections.abc import Iterator

from ablate.config.errors import Problem
from ablate.sweeps.spec.fields import SweepFields


def validate_budget(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the problems of the cap and of the plateau rule of a sweep whose experiments are valid."""
    cap, plateau = sweep.budget.cap, sweep.budget.plateau
    if cap is not None and cap.tokens is not None:
        least = sum(
            sweep.base(arm).items
            * ((0 if sweep.at_grid else 1) + sweep.count_selection_runs(arm) + sweep.confirm.first_seeds)
            for arm in sweep.all_arms
        )
        if cap.tokens < least:
            text = (
                f"leaves no room for a verdict: one trial of each arm, the runs that choose among candidates and the "
                f"first fresh seeds take {least:,}. Accepted: that or more, or fewer seeds (confirm) or shorter runs"
            )
            yield Problem("budget.cap.tokens", text, cap.tokens)
    if plateau is None:
        return
    for arm in sweep.all_arms:
        most = sweep.trials(arm)
        if most is not None and plateau.trials >= most > 0:
            text = f"the rule would never be asked: the search of {arm} has {most} trials. Accepted: less than that"
            yield Problem("budget.plateau.trials", text, plateau.trials)
            break
