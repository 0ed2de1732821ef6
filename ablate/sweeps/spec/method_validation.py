"""Whether the way of comparing settings goes with the rest of a sweep. Only one that trains rung by rung asks for more
than the rest of the file has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ablate.config.errors import Problem
from ablate.config.formatting import join_words
from ablate.sweeps.spec.fields import SweepFields
from ablate.sweeps.spec.places import locate

OF_LENGTH = ("trainer.max_steps", "schedule")
"""Settings that say how long a run is and when it decays."""


def check_method(sweep: SweepFields) -> Iterator[Problem]:
    """Yield what does not go with rungs in the sampler, the pruner, the budget and the number of settings."""
    kind = sweep.method.kind
    if not sweep.method.staged:
        return
    if sweep.sampler.learns:
        text = f"learns from trials that have ended, and {kind} choose all settings before. Accepted: grid, random"
        yield Problem("sampler", text, sweep.sampler.kind)
    if sweep.pruner.stops_trials:
        yield Problem("pruner", f"{kind} stop trials themselves: remove the pruner or search.method", sweep.pruner.kind)
    if any(sweep.sampler.validate(sweep.space(arm)) for arm in sweep.all_arms):
        return
    counts = {arm: sweep.trials(arm) or 0 for arm in sweep.all_arms}
    if len({*counts.values()}) > 1:
        numbers = join_words(f"{arm} has {count}" for arm, count in counts.items())
        text = (
            f"the arms train equally much at every rung, so each needs as many settings: {numbers}. Set budget.trials "
            "to a number that all have, with sampler random for ranges"
        )
        yield Problem("search", text)


def check_method_in_arm(sweep: SweepFields, arm: str) -> Iterator[Problem]:
    """Yield what keeps the settings of `arm`, whose experiments are valid, from being compared."""
    method, base = sweep.method, sweep.base(arm)
    if not method.staged:
        return
    if base.procedure != "training":
        text = f"{method.kind} go on from checkpoints, which an {base.procedure} does not: remove it"
        yield Problem("search.method", text, method.kind)
        return
    for path in sweep.space(arm):
        if path in OF_LENGTH or path.startswith(tuple(f"{part}." for part in OF_LENGTH)):
            text = f"cannot be searched with {method.kind}: the runs of a rung are equally long and decay together"
            yield Problem(f"search.{path}", text)
            return
    for problem in method.validate_arm(sweep.trials(arm) or 0, base):
        own = problem.path.removeprefix("experiment.")
        yield problem if own == problem.path else replace(problem, path=locate(sweep, arm, own))
