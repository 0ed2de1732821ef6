"""The sections of the report on the verdict: fresh seeds, the choice of the settings, crossed runs."""

from __future__ import annotations

import math
from typing import Any

from ablate.config.formatting import count_noun, format_number, join_words
from ablate.reports.columns import setting_columns, word_column
from ablate.reports.confirmation import explain_comparison
from ablate.reports.findings import objective_sign
from ablate.reports.plain_values import trial_to_plain
from ablate.reports.report_data import ReportData
from ablate.reports.table import NOTHING, Column, Section, Table
from ablate.sweeps.comparison import read_outcomes
from ablate.sweeps.records import Candidate, SweepRecord
from ablate.sweeps.verdict_summary import find_bounds, find_difference_bounds, tell_verdict
from ablate.verdict.failures import FailureShare, count_failures
from ablate.verdict.intervals import Estimate
from ablate.verdict.outcomes import Outcome
from ablate.verdict.records import UNCOMPARED, Compared, Versus
from ablate.verdict.statements import format_estimate


def tabulate_confirmed(report: ReportData) -> list[Section]:
    """Return the chosen settings of each arm on fresh seeds, and its verdict; nothing before the first fresh seed."""
    record, compared = report.record, report.confirmed
    if not compared:
        return []
    rows, metric, name = list(compared.values()), record.spec.objective.metric, record.spec.objective.title
    cells, settings = record.spec.cells, setting_columns(record, [c.params for c in rows])
    columns = [
        word_column("arm", [cells[arm].arm if cells else arm for arm in compared]),
        *(settings if cells else []),
        word_column("verdict", [tell_verdict(record, arm, compared) for arm in compared]),
        Column("seeds", [f"{len(c.outcomes)}/{max(c.planned, len(c.outcomes))}" for c in rows]),
        word_column("failed", [format_share(c.failures) for c in rows]),
        Column(name, [_format_mean(c.estimate, find_bounds(metric)) for c in rows]),
        *([_difference_column(record, rows)] if any(c.kind not in UNCOMPARED for c in rows) else []),
        *([] if cells else settings),
    ]
    better = "lower" if objective_sign(record) > 0 else "higher"
    title = f"Results on fresh seeds, each arm {record.spec.tested} ({name}, {better} is better)"
    return [Section(title, Table(columns), list(explain_comparison(record, compared)))]


def _difference_column(record: SweepRecord, rows: list[Compared]) -> Column:
    return Column(f"difference to {record.spec.compared_with}", [_format_difference(c.versus, record) for c in rows])


def format_share(share: FailureShare | None) -> str:
    """Return '2 of 5 (1 diverged, 1 stuck): 5 to 85 %' or '0 of 3: up to 63 %'."""
    if share is None:
        return NOTHING
    kinds = [f"{count} {word}" for count, word in ((share.diverged, "diverged"), (share.stuck, "stuck")) if count]
    told = f" ({', '.join(kinds)})" if kinds else ""
    return f"{share.failed} of {share.n}{told}: {share.describe_interval().partition(',')[0]}"


def count_failed(share: FailureShare | None) -> str:
    """Return '2 of 5'."""
    return f"{share.failed} of {share.n}" if share else NOTHING


def _format_mean(figure: Estimate | None, bounds: tuple[float, float]) -> str:
    return f"{format_estimate(figure, bounds=bounds)} (n={figure.n})" if figure else NOTHING


def _format_difference(versus: Versus | None, record: SweepRecord) -> str:
    if versus is None or versus.difference is None:
        return NOTHING
    left_out = f", {versus.left_out} left out" if versus.left_out else ""
    bounds = find_difference_bounds(record.spec.objective.metric)
    return f"{format_estimate(versus.difference, sign=True, bounds=bounds)} (n={versus.difference.n}{left_out})"


# ---------------------------------------------------------------------------------------------------- selection


def tabulate_selection(report: ReportData) -> list[Section]:
    """Return the candidates of each arm on selection seeds, and the chosen one; nothing if there were none."""
    record = report.record
    rows = [(arm, one) for arm, candidates in record.candidates.items() for one in candidates]
    if not any(one.runs for _, one in rows):
        return []
    ended = [read_outcomes(one.runs, record.trivial_loss) for _, one in rows]
    seeds = record.spec.confirm.selection_seeds
    columns = [
        word_column("arm", [arm for arm, _ in rows]),
        Column("trial", [str(one.trial.number) for _, one in rows]),
        Column("in the search", [format_number(one.trial.value) for _, one in rows]),
        Column("seeds", [f"{len(outcomes)}/{max(seeds, len(outcomes))}" for outcomes in ended]),
        Column("failed", [count_failed(count_failures(outcomes.values())) for outcomes in ended]),
        Column("mean", [_format_mean_of(outcomes) for outcomes in ended]),
        word_column("chosen", [_tell_chosen(record, arm, one) for arm, one in rows]),
        *setting_columns(record, [one.trial.params for _, one in rows]),
    ]
    strong = frozenset(i for i, (arm, one) in enumerate(rows) if is_chosen(record, arm, one))
    sentence = (
        f"The best trials of each search were trained again on {count_noun(seeds, 'selection seed')}, the same for all "
        "candidates and used neither for tuning nor for testing. The chosen candidate failed on the fewest of them "
        "and, among those, has the best mean over the seeds on which it trained (their number in brackets). This "
        "selects settings; it is not evidence."
    )
    alone = [arm for arm, candidates in record.candidates.items() if not any(one.runs for one in candidates)]
    sentences = [sentence, *([f"Only one candidate, so there was no choice: {join_words(alone)}."] if alone else [])]
    sentences += [
        f"The chosen settings of {arm} failed on {count_failed(count_failures(outcomes.values()))} selection seeds."
        for (arm, one), outcomes in zip(rows, ended, strict=True)
        if is_chosen(record, arm, one) and any(not outcome.trained for outcome in outcomes.values())
    ]
    return [Section("How the settings of each arm were chosen: its candidates", Table(columns, strong), sentences)]


def is_chosen(record: SweepRecord, arm: str, candidate: Candidate) -> bool:
    """Return whether the settings of `candidate` are tested on fresh seeds."""
    chosen = record.chosen.get(arm)
    return chosen is not None and chosen.number == candidate.trial.number


def _tell_chosen(record: SweepRecord, arm: str, candidate: Candidate) -> str:
    if record.chosen.get(arm) is None:
        return "not yet"
    return "yes" if is_chosen(record, arm, candidate) else "no"


def _format_mean_of(outcomes: dict[int, Outcome]) -> str:
    values = [o.value for o in outcomes.values() if o.trained and o.value is not None]
    return f"{format_number(math.fsum(values) / len(values))} ({len(values)})" if values else NOTHING


# ---------------------------------------------------------------------------------------------------- crossed


def tabulate_crossed(report: ReportData) -> list[Section]:
    """Return the comparisons at the winner's settings; nothing if none was needed."""
    record, baseline = report.record, report.record.spec.compared_with
    rows = {arm: c for arm, c in report.confirmed.items() if c.crossed is not None or c.needs_crossed}
    unused = [arm for arm in record.crossed if arm not in rows]
    title = "At each other's settings"
    told = [
        f"Crossed runs of {arm} and {baseline} are stored but do not affect the verdict: no difference is shown at "
        "their own settings, or their settings are equal."
        for arm in unused
    ]
    if not rows:
        return [Section(title, sentences=told)] if told else []
    crossed = [c.crossed for c in rows.values()]
    runs = [record.crossed.get(arm) for arm in rows]
    columns = [
        word_column("arms", [f"{arm}, {baseline}" for arm in rows]),
        word_column("trained at the other's settings", [_find_loser(c) for c in rows.values()]),
        Column(
            f"own settings: difference to {baseline}", [_format_difference(c.versus, record) for c in rows.values()]
        ),
        Column(f"crossed: difference to {baseline}", [_format_difference(v, record) for v in crossed]),
        word_column("failed there", [_format_failures(v, baseline) for v in crossed]),
        word_column("claimed", [_tell_agreement(c) for c in rows.values()]),
        *setting_columns(record, [one.params if one else {} for one in runs]),
    ]
    sentence = (
        "Where an arm and the baseline end at different values of a parameter that both search, the worse one is also "
        "trained at the other's values, on the same fresh seeds. A difference is claimed only if it holds there too; "
        "otherwise it may be due to the settings."
    )
    return [Section(title, Table(columns), [sentence, *told])]


def _find_loser(c: Compared) -> str:
    return c.crossed_loser or c.needs_crossed or NOTHING


def _format_failures(versus: Versus | None, baseline: str) -> str:
    if versus is None:
        return NOTHING
    return f"{versus.failed} of {versus.seeds}, {baseline} {versus.other_failed} of {versus.seeds}"


def _tell_agreement(c: Compared) -> str:
    if c.needs_crossed:
        return "not yet: not run" if c.crossed is None else "not yet: seeds are missing"
    return "yes, it holds at both" if c.agrees else "no, it does not hold there"


# ---------------------------------------------------------------------------------------------------- plain values


def candidates_to_plain(record: SweepRecord, arm: str) -> list[dict[str, Any]]:
    """Return the candidates of an arm, for JSON."""
    return [
        {
            "trial": one.trial.number,
            "params": one.trial.params,
            "value": one.trial.value,
            "chosen": is_chosen(record, arm, one),
            "outcomes": {
                str(seed): {"ending": outcome.ending, "value": outcome.value}
                for seed, outcome in read_outcomes(one.runs, record.trivial_loss).items()
            },
            "runs": [trial_to_plain(run) for run in one.runs],
        }
        for one in record.candidates.get(arm, ())
    ]


def crossed_to_plain(record: SweepRecord, arm: str) -> dict[str, Any] | None:
    """Return the runs of an arm or of the baseline at the other's settings, for JSON; None if there are none."""
    crossed = record.crossed.get(arm)
    if crossed is None:
        return None
    runs = [trial_to_plain(run) for run in crossed.runs]
    return {"loser": crossed.loser, "params": crossed.params, "runs": runs}
