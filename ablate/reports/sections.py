"""The sections of the report: tables and the sentences below them. `PARTS` is their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ablate.config.formatting import (
    count_noun,
    format_duration,
    format_number,
    join_words,
    shorten_paths,
)
from ablate.experiment.metrics import is_score, list_parts, shorten_metric
from ablate.reports import fairness, findings
from ablate.reports.columns import format_signed, setting_columns, word_column, word_table
from ablate.reports.downstream_table import tabulate
from ablate.reports.effects_section import effects_to_plain, tabulate_effects
from ablate.reports.importance import MINIMUM_TRIALS, count_scored
from ablate.reports.labels import list_searched
from ablate.reports.layers_section import layers_to_plain, tabulate_layers
from ablate.reports.literature import PublishedTable
from ablate.reports.plain_values import trial_to_plain
from ablate.reports.report_data import ReportData
from ablate.reports.savings_section import tabulate_savings
from ablate.reports.sensitivity_section import (
    sensitivities_to_plain,
    tabulate_seed_sensitivities,
    tabulate_sensitivities,
)
from ablate.reports.table import COUNTS, NOTHING, Column, Section, Table
from ablate.reports.tokens_section import tabulate_tokens
from ablate.reports.usage_section import tabulate_usage
from ablate.reports.verdict_sections import count_failed, tabulate_confirmed, tabulate_crossed, tabulate_selection
from ablate.sweeps.runs import FINISHED, FRESH, STATUSES, Run
from ablate.sweeps.verdict_summary import find_bounds
from ablate.verdict.statements import format_estimate

SPREADS = "Effect of the settings within an arm, best to worst"
RARE = ("pruned", "diverged", "failed")


def tabulate_published(report: ReportData) -> list[Section]:
    """Return the figures of papers beside ours, one section per source."""
    baseline = report.record.spec.compared_with
    sections = []
    for source in report.published:
        rows = source.rows
        differences = [format_estimate(r.difference, sign=True) if r.difference else NOTHING for r in rows]
        columns = [
            word_column("arm", [r.arm for r in rows]),
            word_column("which", [r.kind or NOTHING for r in rows]),
            Column("n", [str(r.ours.n) if r.ours else NOTHING for r in rows]),
            *([Column("failed", [count_failed(r.failures) for r in rows])] if any(r.failures for r in rows) else []),
            Column(
                "ours",
                [format_estimate(r.ours, bounds=find_bounds(source.metric)) if r.ours else NOTHING for r in rows],
            ),
            Column(f"difference to {baseline}", differences),
            Column("published", [format_number(r.published) for r in rows]),
            Column(f"difference to {baseline}", [format_signed(r.published_difference) for r in rows]),
        ]
        metric = shorten_metric(source.metric)
        sections.append(Section(f"Published: {source.source} ({metric})", Table(columns)))
        if source.tokenizers:
            theirs, ours = source.tokenizers
            sections[-1].sentences.append(
                f"The published values use the tokenizer {theirs}, ours use {ours}: unless these are the same, "
                f"{metric} cannot be compared."
            )
    if any(row.failures for source in report.published for row in source.rows):
        sections[-1].sentences.append(
            "Ours: mean ± interval over the n seeds on which it trained, as in the table of fresh seeds."
        )
    if sections:
        sections[-1].sentences.extend(_explain_scores(report.published, report.record.spec.checkpoints == "all"))
        sections[-1].sentences.append(
            "Their data, sizes or budgets may differ: they are not used in this report's comparisons."
        )
        sections[-1].sentences.extend([report.scale] if report.scale else [])
    return sections


def _explain_scores(tables: Sequence[PublishedTable], keeps_all: bool) -> Iterator[str]:
    """Yield which runs the stored scores are of, and which scores are not used. `keeps_all`: whether checkpoints of all
    fresh seeds are kept."""
    if any(table.stored for table in tables):
        yield (
            "Scores that are not measured in training are those that ablate evaluate stored: of the n fresh seeds that "
            "were scored or, without one, of the chosen trial."
        )
    rows = [row for table in tables for row in table.rows]
    if unscored := dict.fromkeys(f"{row.arm} {count_noun(row.unscored, 'seed')}" for row in rows if row.unscored):
        yield f"Trained but not scored: {join_words(unscored)}."
        if not keeps_all:
            yield (
                "Without checkpoints=all only the best fresh seed of an arm keeps its checkpoint, and its score is "
                "optimistic."
            )
    if unlike := dict.fromkeys(metric for table in tables for metric in table.unlike):
        yield (
            f"Not used: {join_words(unlike)}, as the runs were scored on different numbers of questions or with "
            "different numbers of solved examples. Evaluate them with the same options."
        )


def tabulate_downstream(report: ReportData) -> list[Section]:
    """Return the scores on downstream tasks; nothing if no run was evaluated."""
    return tabulate(report.downstream)


def tabulate_search(report: ReportData) -> list[Section]:
    """Return the best trial of each arm; nothing if every point of a grid is tested without a search."""
    record, metric = report.record, report.record.spec.objective.metric
    if record.spec.at_grid:
        return []
    best = {arm: record.best(arm) for arm in record.arms}
    parts = list_parts(metric)
    others = dict.fromkeys(
        m
        for trial in best.values()
        if trial
        for m in sorted(trial.metrics)
        if m != metric and (m in parts or not is_score(m))
    )
    counts = {arm: record.search(arm).count_statuses() for arm in record.arms}
    columns = [
        word_column("arm", best),
        Column("finished", [f"{record.search(arm).finished}/{record.target(arm)}" for arm in best]),
        Column(
            record.spec.objective.title, [format_number(trial.value) if trial else NOTHING for trial in best.values()]
        ),
        *(
            Column(m, [format_number(trial.metrics.get(m)) if trial else NOTHING for trial in best.values()])
            for m in others
        ),
        Column("time", [format_duration(findings.median_seconds(record, arm)) for arm in best]),
        *setting_columns(record, [trial.params if trial else {} for trial in best.values()]),
        *(
            Column(status, [str(c[status]) for c in counts.values()], merge=COUNTS)
            for status in RARE
            if any(c[status] for c in counts.values())
        ),
    ]
    total = record.runs.select(stage="search").count_statuses()
    clean = any(total[s] for s in FINISHED) and not any(total[s] for s in RARE)
    sentence = "time: the median of the completed trials."
    if stuck := sum(
        record.is_stuck(trial) for trials in (record.search(arm) for arm in record.arms) for trial in trials
    ):
        sentence += f" {count_noun(stuck, 'completed trial')} ended stuck."
    sentence += " No trial was pruned, diverged or failed." if clean and not stuck else ""
    return [Section(_name_search(report), Table(columns), [sentence])]


def _name_search(report: ReportData) -> str:
    """Return the title of the search's results, which says that the best of several values is optimistic."""
    record = report.record
    counts = sorted({record.search(arm).finished for arm in record.arms})
    tried = " to ".join(dict.fromkeys(str(n) for n in (counts[0], counts[-1])))
    seeds = len(findings.collect_seeds(record))
    return f"Search results (best of {tried} on {f'{seeds} seeds' if seeds > 1 else 'one seed'}: optimistic)"


def tabulate_importances(report: ReportData) -> list[Section]:
    """Return the importance of each searched parameter; nothing if nothing is searched."""
    record, paths = report.record, list_searched(report.record.spec)
    title = "Importance of each searched parameter (fANOVA; shares of an arm sum to 1)"
    needed = f"it needs {MINIMUM_TRIALS} finished trials of an arm with different values."
    if not paths or record.spec.at_grid:
        return []
    if not any(report.importance.values()):
        return [Section("", sentences=[f"No importance: {needed}"])]
    columns = [
        word_column("arm", record.arms),
        Column("n trials", [str(count_scored(record, arm)) for arm in record.arms]),
        *(
            Column(name, [format_number(report.importance[arm].get(path), 2) for arm in record.arms])
            for path, name in shorten_paths(paths).items()
        ),
    ]
    sentences = []
    if few := [arm for arm in record.arms if not report.importance[arm] and record.spec.space(arm)]:
        sentences.append(f"None for {join_words(few)}: {needed}")
    if any(len(values) > 1 for values in report.importance.values()):
        sentences.append("With few trials this is a rough order, not a measurement.")
    return [Section(title, Table(columns), sentences)]


def tabulate_confounds(report: ReportData) -> list[Section]:
    """Return the differences between the arms and their runs other than the compared factor."""
    sections, confounds = [], report.confounds
    if confounds is not None:
        factor = join_words(confounds.factor) or "compared factor"
        if confounds.found:
            rows = [
                (c.path, value, join_words(a for a, v in c.values.items() if v == value), "yes" if c.declared else "no")
                for c in confounds.found
                for value in dict.fromkeys(c.values.values())
            ]
            title = f"The arms differ in {factor}, and also in"
            sections.append(Section(title, word_table(("setting", "value", "arms", "declared"), rows)))
        else:
            sentence = f"The arms differ only in {factor}."
            if confounds.problem:
                sentence = f"Whether the arms differ only in {factor} is not known: {confounds.problem}"
            sections.append(Section("Differences between the arms", sentences=[sentence]))
    notes = list(fairness.describe_surroundings(report.record))
    if report.surroundings:
        lines = [
            (s.key, value, join_words(f"{arm} {runs}" for arm, runs in arms.items()))
            for s in report.surroundings
            for value, arms in s.runs.items()
        ]
        sections.append(Section("The runs also differ in", word_table(("fact", "value", "runs"), lines), notes))
    elif notes:
        sections.append(Section("Data, hardware and software of the runs", sentences=notes))
    return sections


def tabulate_trials(report: ReportData) -> list[Section]:
    """Return every trial, those of an arm best first, and the reasons for diverged and failed trials."""
    record, sign = report.record, findings.objective_sign(report.record)
    if record.spec.at_grid:
        return []
    ordered = [
        t
        for trials in (record.search(arm) for arm in record.arms)
        for t in sorted(trials, key=lambda t: (STATUSES.index(t.status), sign * (t.value or 0.0), t.number))
    ]
    columns = [
        word_column("arm", [t.arm for t in ordered]),
        Column("trial", [str(t.number) for t in ordered]),
        word_column("status", [f"{t.status} (stuck)" if record.is_stuck(t) else t.status for t in ordered]),
        Column(record.spec.objective.title, [format_number(t.value) for t in ordered]),
        *setting_columns(record, [t.params for t in ordered]),
        Column("updates", [str(t.step) for t in ordered]),
        Column("time", [format_duration(t.seconds) for t in ordered]),
    ]
    best = [record.best(arm) for arm in record.arms]
    strong = frozenset(i for i, t in enumerate(ordered) if any(t is b for b in best))
    title = f"All {count_noun(len(ordered), 'trial')}{' of the search' if report.confirmed else ''}"
    return [Section(title, Table(columns, strong), list(_list_reasons(ordered)))]


def _published_values(report: ReportData) -> dict[str, Any]:
    return {"published": [asdict(table) for table in report.published]}


def _confound_values(report: ReportData) -> dict[str, Any]:
    return {
        "confounds": asdict(report.confounds) if report.confounds else None,
        "surroundings": {s.key: s.runs for s in report.surroundings},
        "common": fairness.find_common_facts(report.record),
    }


def _trial_values(report: ReportData) -> dict[str, Any]:
    record = report.record
    return {
        "trials": [trial_to_plain(trial) for trials in (record.search(arm) for arm in record.arms) for trial in trials],
        "confirmations": [trial_to_plain(run) for run in record.runs.select(stage=FRESH)],
    }


@dataclass(frozen=True)
class Part:
    """A part of the report, on the terminal, on the page and in report.json."""

    tabulate: Callable[[ReportData], list[Section]]
    values: Callable[[ReportData], dict[str, Any]] = lambda report: {}
    """The part's own keys in report.json; the keys of each arm are under "arms"."""
    fold: str = ""
    """The title of the page's collapsed section that contains it; empty: it is one of the main results and is not
    collapsed."""


VERDICT, TOKENS, SETTINGS, SEARCH, COST, CONFOUNDS, DIAGNOSTICS = (
    "How the verdict was reached",
    "Training needed to reach the baseline",
    "Settings",
    "Search",
    "Cost",
    "Confounds",
    "Diagnostics",
)
PARTS = (
    Part(tabulate_effects, effects_to_plain),
    Part(tabulate_confirmed),
    Part(tabulate_crossed, fold=VERDICT),
    Part(tabulate_tokens, fold=TOKENS),
    Part(tabulate_downstream, lambda report: {"downstream": report.downstream.to_dict()}, fold="Downstream tasks"),
    Part(tabulate_published, _published_values, fold="Published results"),
    Part(tabulate_selection, fold=SETTINGS),
    Part(tabulate_sensitivities, fold=SETTINGS),
    Part(tabulate_seed_sensitivities, sensitivities_to_plain, fold=SETTINGS),
    Part(tabulate_importances, fold=SETTINGS),
    Part(tabulate_search, fold=SEARCH),
    Part(tabulate_trials, _trial_values, fold=SEARCH),
    Part(tabulate_usage, fold=COST),
    Part(tabulate_savings, fold=COST),
    Part(tabulate_confounds, _confound_values, fold=CONFOUNDS),
    Part(tabulate_layers, layers_to_plain, fold=DIAGNOSTICS),
)
"""In the order of the terminal, of the page and of report.json: results on fresh seeds before those of the search."""


# ---------------------------------------------------------------------------------------------------- parts


def _list_reasons(trials: Iterable[Run]) -> Iterable[str]:
    """Yield the reasons for diverged and failed trials, grouped by arm and reason."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for t in trials:
        if t.reason and t.status in ("diverged", "failed"):
            groups.setdefault((t.arm, t.status, t.reason), []).append(t.number)
    for (arm, status, reason), numbers in groups.items():
        yield f"{arm} {join_words(map(str, sorted(numbers)))} {status}: {reason}"
