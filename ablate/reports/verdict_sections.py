"""The verdict in the report: its text with the rules behind it, and the sections on fresh seeds, the choice of the
settings and challenges.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ablate.config.errors import ConfigError
from ablate.config.formatting import (
    count_noun,
    format_number,
    format_settings,
    format_uncertain,
    join_words,
    shorten_paths,
)
from ablate.reports.findings import objective_sign
from ablate.reports.labels import list_settings
from ablate.reports.literature import count_failed
from ablate.reports.plain_values import trial_to_plain
from ablate.reports.section import NOTHING, Column, Section, Table, words
from ablate.scheduler.donors import state_shared_starts
from ablate.sweeps.challenges import find_params
from ablate.sweeps.comparison import compare_record_effects, list_claims, list_earlier_pairs
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import CHALLENGE, FRESH, Run, Runs
from ablate.sweeps.verdict_summary import find_bounds, find_difference_bounds, name_unit, tell_verdict
from ablate.verdict.comparison import UNCOMPARED, Claim, Compared
from ablate.verdict.failures import count_failures
from ablate.verdict.outcomes import Outcome, state_rule
from ablate.verdict.statements import (
    TYPICAL,
    format_difference,
    format_estimate,
    format_share,
    format_typical,
    state_effects,
    state_verdict,
)


def describe_verdict(record: SweepRecord, compared: Mapping[str, Compared]) -> str:
    """Return the sentences of the verdict on the arms in `compared`; empty if there are none."""
    spec = record.spec
    if not compared:
        return ""
    if not record.runs.select(stage=FRESH):  # and none is to come
        return f"{join_words(compared)} could not be trained within the budget: no trial of any search completed."
    maximize = spec.objective.direction == "maximize"
    bounds = find_bounds(spec)
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
    yield state_rule(record.trivial_loss, spec.objective.title, record.runs.maximize)
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
    bounds = find_bounds(spec)
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
        yield TYPICAL
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
    bounds = find_bounds(record.spec)
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


def tabulate_confirmed(record: SweepRecord, compared: Mapping[str, Compared]) -> list[Section]:
    """Return the chosen settings of each arm on fresh seeds, and its verdict; nothing before the first fresh seed."""
    if not compared:
        return []
    name = record.spec.objective.title
    rows, bounds = list(compared.values()), find_bounds(record.spec)
    cells, settings = record.spec.cells, list_settings(record, [c.params for c in rows])
    columns = [
        words("arm", [cells[arm].arm if cells else arm for arm in compared]),
        *(settings if cells else []),
        words("verdict", [tell_verdict(record, arm, compared) for arm in compared]),
        Column("seeds", [f"{len(c.outcomes)}/{max(c.planned, len(c.outcomes))}" for c in rows]),
        words("failed", [c.failures for c in rows], format_share),
        Column(name, [c.estimate for c in rows], lambda mean: f"{format_estimate(mean, bounds=bounds)} (n={mean.n})"),
        *(
            [
                Column(
                    f"difference to {record.spec.compared_with}",
                    [format_difference(c.versus, find_difference_bounds(record.spec)) for c in rows],
                ),
                words("typical seed", [format_typical(c.versus, objective_sign(record)) for c in rows]),
            ]
            if any(c.kind not in UNCOMPARED for c in rows)
            else []
        ),
        *([] if cells else settings),
    ]
    better = "lower" if objective_sign(record) > 0 else "higher"
    title = f"Results on fresh seeds, each arm {record.spec.tested} ({name}, {better} is better)"
    return [Section(title, Table(columns), list(explain_comparison(record, compared)))]


# ---------------------------------------------------------------------------------------------------- selection


def tabulate_selection(record: SweepRecord) -> list[Section]:
    """Return the candidates of each arm on selection seeds, and the chosen one; nothing if there were none."""
    candidates = [one for arm in record.arms for one in record.list_candidates(arm)]
    if not candidates:
        return []
    rows, ended = [run for run, _ in candidates], [runs.outcomes() for _, runs in candidates]
    confirm = record.spec.confirm
    seeds = confirm.selection_seeds
    columns = [
        words("arm", [run.arm for run in rows]),
        Column("trial", [run.number for run in rows]),
        Column("in the search", [run.value for run in rows]),
        Column("seeds", [f"{len(outcomes)}/{max(seeds, len(outcomes))}" for outcomes in ended]),
        Column("failed", [count_failures(outcomes.values()) for outcomes in ended], count_failed),
        Column("mean", [_format_mean_of(outcomes) for outcomes in ended]),
        words("chosen", [_tell_chosen(record, run) for run in rows]),
        *list_settings(record, [run.params for run in rows]),
    ]
    strong = frozenset(i for i, run in enumerate(rows) if is_chosen(record, run))
    sentence = (
        f"The best trials of each search were trained again on {count_noun(seeds, 'selection seed')}, those "
        f"within their noise on up to {confirm.most_selection_seeds}; none is used for testing. The chosen candidate "
        "failed on the fewest of them and, among those, has the best mean over them and its run of the search. This "
        "selects settings; it is not evidence."
    )
    sentences = [
        sentence,
        *(
            f"The chosen settings of {run.arm} failed on {count_failed(share)} selection seeds."
            for run, outcomes in zip(rows, ended, strict=True)
            if is_chosen(record, run) and (share := count_failures(outcomes.values())) and share.failed
        ),
    ]
    return [Section("How the settings of each arm were chosen: its candidates", Table(columns, strong), sentences)]


def is_chosen(record: SweepRecord, candidate: Run) -> bool:
    """Return whether the settings of `candidate` are tested on fresh seeds."""
    return record.chosen.get(candidate.arm) == candidate.number


def _tell_chosen(record: SweepRecord, candidate: Run) -> str:
    if candidate.arm not in record.chosen:
        return "not yet"
    return "yes" if is_chosen(record, candidate) else "no"


def _format_mean_of(outcomes: dict[int, Outcome]) -> str:
    values = [o.value for o in outcomes.values() if o.trained and o.value is not None]
    return f"{format_number(math.fsum(values) / len(values))} ({len(values)})" if values else NOTHING


# ---------------------------------------------------------------------------------------------------- challenge


def tabulate_challenges(record: SweepRecord) -> list[Section]:
    """Return the further settings that arms tried before they were told that they lost; nothing if none did."""
    rows = [(arm, own) for arm in record.arms for own in list_tries(record, arm)]
    claims = list_claims(record)
    told = [text for name, claim in claims.items() if (text := _tell_challenge(record, name, claim))]
    if any(c.challenge and c.challenge.unheld and not c.challenge.open for c in claims.values()):
        told.append("The same command goes on with a larger challenge.trials.")
    if not rows:
        return [Section(_CHALLENGED, sentences=told)] if told else []
    columns = [
        words("arm", [arm for arm, _ in rows]),
        Column("trial", [runs[0].number for _, runs in rows]),
        *list_settings(record, [runs[0].params for _, runs in rows]),
        Column("seeds", [str(runs.finished) for _, runs in rows]),
        Column("failed", [count_failures(runs.outcomes().values()) for _, runs in rows], count_failed),
        Column("mean", [_format_mean_of(runs.outcomes()) for _, runs in rows]),
        words("chosen", [_tell_chosen(record, runs[0]) for _, runs in rows]),
    ]
    strong = frozenset(i for i, (_, runs) in enumerate(rows) if is_chosen(record, runs[0]))
    sentence = (
        "Before an arm is told that it lost, it tries again: at the winner's settings, and wherever a quadratic fitted "
        "to its runs says that it may still win, on the seeds of the choice. A difference is claimed only if no other "
        "settings can be expected to win; better ones are tested on the fresh seeds in the place of the choice."
    )
    return [Section(_CHALLENGED, Table(columns, strong), [sentence, *told])]


_CHALLENGED = "Other settings of the arms that lost"


def list_tries(record: SweepRecord, arm: str) -> list[Runs]:
    """Return the runs of each of the further settings of an arm."""
    runs = record.runs.select(arm, CHALLENGE)
    return [runs.select(number=number) for number in dict.fromkeys(run.number for run in runs)]


def _tell_challenge(record: SweepRecord, name: str, claim: Claim) -> str:
    """Return what the other settings of the arms of a claim promise, in a sentence; '' if nothing is claimed."""
    if claim.challenge is None or not claim.challenge.rivals:
        return ""
    unit, told = name_unit(record.spec), []
    for arm, rival in claim.challenge.rivals.items():
        if math.isinf(rival.variance):
            told.append(f"nothing is known of some settings of {arm}")
            continue
        gain = format_uncertain(rival.gain, math.sqrt(rival.variance), sign=True)
        settings = format_settings(find_params(record, arm, rival.place), shorten_paths(record.spec.space(arm)))
        told.append(f"{arm} at {settings} is expected to gain {gain} {unit} (one standard error)")
    stands = "stands at all other settings" if claim.challenge.held else "does not stand at all other settings"
    return f"{name}: the comparison {stands}; nearest to overturn it, {'; '.join(told)}."


# ---------------------------------------------------------------------------------------------------- plain values


def candidates_to_plain(record: SweepRecord, arm: str) -> list[dict[str, Any]]:
    """Return the candidates of an arm, for JSON."""
    return [
        {
            "trial": run.number,
            "params": run.params,
            "value": run.value,
            "chosen": is_chosen(record, run),
            "outcomes": {
                str(seed): {"ending": outcome.ending, "value": outcome.value}
                for seed, outcome in runs.outcomes().items()
            },
            "runs": [trial_to_plain(one) for one in runs],
        }
        for run, runs in record.list_candidates(arm)
    ]


def tries_to_plain(record: SweepRecord, arm: str) -> list[dict[str, Any]]:
    """Return the further settings of an arm, for JSON."""
    return [
        {"trial": runs[0].number, "params": runs[0].params, "runs": [trial_to_plain(run) for run in runs]}
        for runs in list_tries(record, arm)
    ]
