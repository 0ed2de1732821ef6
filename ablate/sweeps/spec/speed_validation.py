"""Checks of the cost at which arms are compared, and of the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ablate.config.errors import ConfigError, Problem
from ablate.config.formatting import format_number, join_words
from ablate.experiment.metrics import describe_metric
from ablate.sweeps.spec.fields import SweepFields
from ablate.sweeps.spec.metrics_validation import find_reading
from ablate.verdict.outcomes import LEARNED, LOSS


def check_speed(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the problems of `compare` and of `target`."""
    at, target = sweep.compare.at, sweep.target
    if not sweep.is_own:
        given = [("compare.at", at)] * (at != "end") + [("target", target)] * (target is not None)
        text = "needs the cost of each update, which is known of Ablate's own trainer alone. Remove it"
        yield from (Problem(path, text, value) for path, value in given)
        return
    if not sweep.confirm.most_seeds:
        given = [("compare.at", at)] * (at != "end") + [("target", target)] * (target is not None)
        text = "compares arms on fresh seeds, and this sweep has none: set confirm.seeds"
        yield from (Problem(path, text, value) for path, value in given)
    if target is not None:
        yield from _check_target(sweep, target)
    if at != "end" and (unread := list(_list_unread(sweep))):
        text = (
            f"needs a curve of validations, and runs of {join_words(unread)} have one point: set "
            "trainer.val_check_interval to a part of trainer.max_steps"
        )
        yield Problem("compare.at", text, at)


def _check_target(sweep: SweepFields, target: float) -> Iterator[Problem]:
    if sweep.contrasts:
        text = "goes with arms against a baseline; the effects of a factorial have no curve that reaches it. Remove it"
        yield Problem("target", text, target)
    known = describe_metric(sweep.objective.metric)
    worst = known and known.bounds[0 if sweep.objective.direction == "maximize" else 1]
    if known and (target == worst or not known.bounds[0] <= target <= known.bounds[1]):
        low, high = (format_number(bound) for bound in known.bounds)
        text = f"is no value to be reached: {sweep.objective.metric} lies between {low} and {high}"
        yield Problem("target", text, target)


def _list_unread(sweep: SweepFields) -> Iterator[str]:
    """Yield the arms whose runs have one validation, where some arm may be read before its end."""
    lengths = set()
    unread = []
    for arm in sweep.all_arms:
        try:
            base = sweep.own_base(arm)
        except ConfigError:  # reported separately
            return
        lengths.add(base.items)
        interval = base.validation.interval if base.procedure == "training" else base.trainer.max_steps
        scored = sweep.objective.metric.startswith("eval/") and find_reading(base) is None
        if interval >= base.trainer.max_steps or scored:
            unread.append(arm)
    if sweep.compare.at != "tokens" or len(lengths) > 1:
        yield from unread


def check_reachable(sweep: SweepFields, trivial_losses: Mapping[str, float | None]) -> Iterator[Problem]:
    """Yield a problem if the target is a loss that a model which has learned nothing is at. `trivial_losses`: arm -> of
    a predictor that ignores its inputs."""
    losses = [loss for loss in trivial_losses.values() if loss is not None]
    if sweep.target is None or sweep.objective.metric != LOSS or not losses:
        return
    most = (1 - LEARNED) * min(losses)
    if sweep.target >= most:
        text = (
            f"is reached by a predictor that ignores its inputs, whose loss is {format_number(min(losses))}. Accepted: "
            f"below {format_number(most)}"
        )
        yield Problem("target", text, sweep.target)
