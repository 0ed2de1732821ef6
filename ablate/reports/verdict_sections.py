"""The sections of the report on the verdict: fresh seeds, the choice of the settings, crossed runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ablate.config.formatting import count_noun, format_number
from ablate.reports.confirmation import explain_comparison
from ablate.reports.findings import objective_sign
from ablate.reports.literature import count_failed
from ablate.reports.plain_values import trial_to_plain
from ablate.reports.section import NOTHING, Column, Section, Table, list_settings, words
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import Run, Runs
from ablate.sweeps.verdict_summary import find_bounds, find_difference_bounds, tell_verdict
from ablate.verdict.comparison import UNCOMPARED, Compared, Crossing, Versus
from ablate.verdict.failures import FailureShare, count_failures
from ablate.verdict.outcomes import Outcome
from ablate.verdict.statements import format_estimate


def tabulate_confirmed(record: SweepRecord, compared: Mapping[str, Compared]) -> list[Section]:
    """Return the chosen settings of each arm on fresh seeds, and its verdict; nothing before the first fresh seed."""
    if not compared:
        return []
    rows, bounds, name = list(compared.values()), find_bounds(record.spec.objective.metric), record.spec.objective.title
    cells, settings = record.spec.cells, list_settings(record, [c.params for c in rows])
    columns = [
        words("arm", [cells[arm].arm if cells else arm for arm in compared]),
        *(settings if cells else []),
        words("verdict", [tell_verdict(record, arm, compared) for arm in compared]),
        Column("seeds", [f"{len(c.outcomes)}/{max(c.planned, len(c.outcomes))}" for c in rows]),
        words("failed", [c.failures for c in rows], format_share),
        Column(name, [c.estimate for c in rows], lambda mean: f"{format_estimate(mean, bounds=bounds)} (n={mean.n})"),
        *(
            [Column(f"difference to {record.spec.compared_with}", [_format_difference(c.versus, record) for c in rows])]
            if any(c.kind not in UNCOMPARED for c in rows)
            else []
        ),
        *([] if cells else settings),
    ]
    better = "lower" if objective_sign(record) > 0 else "higher"
    title = f"Results on fresh seeds, each arm {record.spec.tested} ({name}, {better} is better)"
    return [Section(title, Table(columns), list(explain_comparison(record, compared)))]


def format_share(share: FailureShare) -> str:
    """Return '2 of 5 (1 diverged, 1 stuck): 5 to 85 %' or '0 of 3: up to 63 %'."""
    kinds = [f"{count} {word}" for count, word in ((share.diverged, "diverged"), (share.stuck, "stuck")) if count]
    told = f" ({', '.join(kinds)})" if kinds else ""
    return f"{share.failed} of {share.n}{told}: {share.describe_interval().partition(',')[0]}"


def _format_difference(versus: Versus | None, record: SweepRecord) -> str:
    if versus is None or versus.difference is None:
        return NOTHING
    left_out = f", {versus.left_out} left out" if versus.left_out else ""
    bounds = find_difference_bounds(record.spec.objective.metric)
    return f"{format_estimate(versus.difference, sign=True, bounds=bounds)} (n={versus.difference.n}{left_out})"


# ---------------------------------------------------------------------------------------------------- selection


def tabulate_selection(record: SweepRecord) -> list[Section]:
    """Return the candidates of each arm on selection seeds, and the chosen one; nothing if there were none."""
    candidates = [one for arm in record.arms for one in record.list_candidates(arm)]
    if not candidates:
        return []
    rows, ended = [run for run, _ in candidates], [runs.outcomes() for _, runs in candidates]
    seeds = record.spec.confirm.selection_seeds
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
        f"The best trials of each search were trained again on {count_noun(seeds, 'selection seed')}, the same for all "
        "candidates and used neither for tuning nor for testing. The chosen candidate failed on the fewest of them "
        "and, among those, has the best mean over the seeds on which it trained (their number in brackets). This "
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


# ---------------------------------------------------------------------------------------------------- crossed


def tabulate_crossed(record: SweepRecord, compared: Mapping[str, Compared]) -> list[Section]:
    """Return the comparisons at the winner's settings; nothing if none was needed."""
    baseline = record.spec.compared_with
    rows = {arm: (c, c.crossing) for arm, c in compared.items() if c.crossing}
    unused = [arm for arm in record.arms if arm not in rows and _find_crossed(record, arm)]
    title = "At each other's settings"
    told = [
        f"Crossed runs of {arm} and {baseline} are stored but do not affect the verdict: no difference is shown at "
        "their own settings, or their settings are equal."
        for arm in unused
    ]
    if not rows:
        return [Section(title, sentences=told)] if told else []
    there = [crossing.versus for _, crossing in rows.values()]
    runs = [_find_crossed(record, arm) for arm in rows]
    columns = [
        words("arms", [f"{arm}, {baseline}" for arm in rows]),
        words("trained at the other's settings", [crossing.pairs[0][0] for _, crossing in rows.values()]),
        Column(
            f"own settings: difference to {baseline}", [_format_difference(c.versus, record) for c, _ in rows.values()]
        ),
        Column(f"crossed: difference to {baseline}", [_format_difference(v, record) for v in there]),
        words("failed there", [_format_failures(v, baseline) for v in there]),
        words("claimed", [_tell_agreement(crossing) for _, crossing in rows.values()]),
        *list_settings(record, [own[0].params if own else {} for own in runs]),
    ]
    sentence = (
        "Where an arm and the baseline end at different values of a parameter that both search, the worse one is also "
        "trained at the other's values, on the same fresh seeds. A difference is claimed only if it holds there too; "
        "otherwise it may be due to the settings."
    )
    return [Section(title, Table(columns), [sentence, *told])]


def _format_failures(versus: Versus | None, baseline: str) -> str:
    if versus is None:
        return NOTHING
    return f"{versus.failed} of {versus.seeds}, {baseline} {versus.other_failed} of {versus.seeds}"


def _tell_agreement(crossing: Crossing) -> str:
    if crossing.missing:
        return "not yet: seeds are missing" if crossing.versus else "not yet: not run"
    return "yes, it holds at both" if crossing.agrees else "no, it does not hold there"


def _find_crossed(record: SweepRecord, arm: str) -> Runs:
    """Return the runs of `arm` and its baseline at each other's settings; where either was the loser at some look,
    those of the one that is further."""
    baseline, known = record.spec.baselines[arm], record.runs.list_crossed()
    either = [known[pair] for pair in ((arm, baseline), (baseline, arm)) if pair in known]
    return max(either, key=lambda runs: (len(runs.outcomes()), len(runs)), default=record.runs.replace(()))


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


def crossed_to_plain(record: SweepRecord, arm: str) -> dict[str, Any] | None:
    """Return the runs of an arm or of the baseline at the other's settings, for JSON; None if there are none."""
    if not (runs := _find_crossed(record, arm)):
        return None
    return {"loser": runs[0].arm, "params": runs[0].params, "runs": [trial_to_plain(run) for run in runs]}
