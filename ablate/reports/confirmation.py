"""The report's text on fresh seeds: the verdict, and the rules behind it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping

from ablate.config.errors import ConfigError
from ablate.config.formatting import count_noun, format_number, join_words
from ablate.scheduler.donors import state_shared_starts
from ablate.sweeps.comparison import compare_record_effects, list_earlier_pairs
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH
from ablate.sweeps.verdict_summary import find_bounds, name_unit
from ablate.verdict.comparison import UNCOMPARED, Compared
from ablate.verdict.outcomes import state_rule
from ablate.verdict.statements import format_estimate, state_effects, state_verdict


def describe_verdict(record: SweepRecord, compared: Mapping[str, Compared]) -> str:
    """Return the sentences of the verdict on the arms in `compared`; empty if there are none."""
    spec = record.spec
    if not compared:
        return ""
    if not record.runs.select(stage=FRESH):  # and none is to come
        return f"{join_words(compared)} could not be trained within the budget: no trial of any search completed."
    maximize = spec.objective.direction == "maximize"
    bounds = find_bounds(spec.objective.metric)
    if effects := compare_record_effects(record):
        text = state_effects(effects, unit=name_unit(spec), maximize=maximize, where=f"each cell {spec.tested}")
        return f"{text} {_state_starts(record)}".rstrip()
    unit, where = name_unit(spec), f"each arm {spec.tested}"
    text = state_verdict(compared, spec.baselines, unit=unit, maximize=maximize, bounds=bounds, where=where)
    return f"{text} {_state_starts(record)}".rstrip()


def _state_starts(record: SweepRecord) -> str:
    with contextlib.suppress(ConfigError):  # of a plugin that is gone
        return state_shared_starts(record)
    return ""


def name_baseline(record: SweepRecord) -> str:
    """Return the name of the baseline: 'pre', or 'pre at the same point' of a grid."""
    return f"{record.spec.compared_with}{' at the same point' if record.spec.cells else ''}"


def explain_comparison(record: SweepRecord, compared: Mapping[str, Compared]) -> Iterator[str]:
    """Yield explanations of the figures of `compared`, and of the rules behind them."""
    spec, any_arm = record.spec, next(iter(compared.values()))
    yield from describe_unreproduced(record, compared)
    yield from _describe_changes(record)
    yield state_rule(record.trivial_loss)
    ended = [outcome for c in compared.values() for outcome in c.outcomes.values()]
    if ended and not any(outcome.trained for outcome in ended):
        yield "No seed of any arm learned anything: train longer, or search other learning rates."
    yield (
        "failed: of the seeds that ended, with the exact 95 % interval of the share that fails (Clopper-Pearson; "
        "one-sided if none or all failed; for each arm alone, not widened for looks or other arms)."
    )
    bounded = any(c.estimate and c.estimate.half_width is not None for c in compared.values())
    interval = ", with its 95 % interval, widened for every look" if bounded else "; there is no interval yet"
    yield (
        f"{spec.objective.title}: mean over the n seeds on which the arm trained, conditional on having "
        f"trained{interval}."
    )
    bounds = find_bounds(spec.objective.metric)
    low, high = bounds
    ends = [c.estimate.interval for c in compared.values() if c.estimate and c.estimate.interval]
    if any(left < low or right > high for left, right in ends):
        above = f" or above {high:g}" if math.isfinite(high) else ""
        yield (
            f"In brackets: an interval clipped to possible values of {spec.objective.title}, not below {low:g}{above}. "
            "It covers the true mean as often as the unclipped interval."
        )
    if any(c.kind not in UNCOMPARED for c in compared.values()):
        sharing = "one comparison" if any_arm.family == 1 else f"{any_arm.family} comparisons together"
        bounded = any(c.difference and c.difference.half_width is not None for c in compared.values())
        interval = (
            (f", ± an interval with a joint error of 5 % over {sharing} and all looks")
            if bounded
            else "; no interval yet"
        )
        yield (
            f"difference to {name_baseline(record)}: mean of the paired differences over the n seeds on which both "
            f"trained{interval}."
        )
        if spec.confirm.effect is None:
            yield "No confirm.effect is given, so no arms are called equivalent."
    yield from _note_waiting(compared)
    yield from _note_unselected(record, compared)


def _note_waiting(compared: Mapping[str, Compared]) -> Iterator[str]:
    waiting = {arm: len(c.outcomes) - c.looks.sizes[-1] for arm, c in compared.items() if c.looks}
    if any(n > 0 for n in waiting.values()):
        per_arm = join_words(f"{arm} {n}" for arm, n in waiting.items() if n > 0)
        yield f"Seeds that have ended but are only included at the next look: {per_arm}."


def _note_unselected(record: SweepRecord, compared: Mapping[str, Compared]) -> Iterator[str]:
    """Yield a note on settings that were not chosen on selection seeds: the search found only one, or only one was
    requested."""
    if record.spec.cells:
        return
    if unselected := [arm for arm, c in compared.items() if c.outcomes and not record.list_candidates(arm)]:
        yield (
            f"The settings of {join_words(unselected)} are those of the best trial of the search: no candidates were "
            "compared on selection seeds."
        )


def _describe_changes(record: SweepRecord) -> Iterator[str]:
    """Yield settings that were changed after the first look at the seeds, possibly with knowledge of their outcomes."""
    effect = record.spec.confirm.effect
    before = {value for value in record.first_effects.values() if value != effect}
    if before:
        told = join_words("none" if value is None else f"{value:g}" for value in sorted(before, key=str))
        now = "none" if effect is None else f"{effect:g}"
        yield (
            f"confirm.effect was {told} when the seeds were first looked at, and is {now} now: it was not chosen "
            "beforehand."
        )
    if pairs := list_earlier_pairs(record):
        told = join_words(f"{one} and {other}" for one, other in pairs)
        yield f"Earlier, {told} were compared with another baseline; these comparisons share the error too."


def describe_unreproduced(record: SweepRecord, compared: Mapping[str, Compared]) -> Iterator[str]:
    """Yield a sentence for each arm whose settings learned in the search and reached a better value there than fresh
    seeds confirm: it is better than the whole interval of their mean, or no fresh seed trained."""
    sign = 1 if record.spec.objective.direction == "maximize" else -1
    bounds = find_bounds(record.spec.objective.metric)
    for arm, c in () if record.spec.cells else compared.items():
        settled = record.settled(arm)
        if settled is None or settled.value is None or record.is_stuck(settled) or c.failures is None:
            continue
        head = f"{arm} does not reproduce what its settings reached in the search, {format_number(settled.value)}: "
        seeds = count_noun(c.failures.n, "fresh seed")
        if c.failures.failed == c.failures.n:
            yield f"{head}it trained on none of {seeds}."
            continue
        ends = c.estimate.interval if c.estimate else None
        if c.estimate and ends and sign * settled.value > max(sign * end for end in ends):
            failed = f", and {c.failures.failed} of {seeds} failed" if c.failures.failed else ""
            mean = f"{format_estimate(c.estimate, bounds=bounds)} (n = {c.estimate.n})"
            yield f"{head}its mean on fresh seeds is {mean}{failed}."
