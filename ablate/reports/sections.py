"""The sections of the report on the search, and the order of all sections: `PARTS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ablate.config.formatting import count_noun, format_duration, join_words
from ablate.experiment.metrics import is_score, list_parts
from ablate.reports import findings
from ablate.reports.downstream import tabulate_downstream
from ablate.reports.effects import effects_to_plain, tabulate_effects
from ablate.reports.fairness import confounds_to_plain, find_common_facts, tabulate_confounds
from ablate.reports.labels import list_settings
from ablate.reports.layer_seeds import LAYERS, tabulate_layers
from ablate.reports.literature import tabulate_published
from ablate.reports.page import RULES
from ablate.reports.plain_values import trial_to_plain
from ablate.reports.report_data import ReportData
from ablate.reports.section import Column, Document, Section, Table, words
from ablate.reports.sensitivity import tabulate_seed_sensitivities, tabulate_sensitivities
from ablate.reports.speed import cost_to_plain, tabulate_speeds
from ablate.reports.usage import tabulate_costs, tabulate_usage
from ablate.reports.verdict_sections import tabulate_challenges, tabulate_confirmed, tabulate_selection
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FINISHED, FRESH, STATUSES, Run

RARE = ("pruned", "diverged", "failed")


def tabulate_search(record: SweepRecord) -> list[Section]:
    """Return the best trial of each arm; nothing if every point of a grid is tested without a search."""
    metric = record.spec.objective.metric
    if record.spec.cells:
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
    rare = [status for status in RARE if any(c[status] for c in counts.values())]
    columns = [
        words("arm", best),
        Column("finished", [f"{record.search(arm).finished}/{record.target(arm)}" for arm in best]),
        Column(record.spec.objective.title, [trial and trial.value for trial in best.values()]),
        *(Column(m, [trial and trial.metrics.get(m) for trial in best.values()]) for m in others),
        Column("time", [format_duration(findings.median_seconds(record, arm)) for arm in best]),
        *list_settings(record, [trial.params if trial else {} for trial in best.values()]),
        *([Column("/".join(rare), ["/".join(str(c[s]) for s in rare) for c in counts.values()])] if rare else []),
    ]
    total = record.runs.select(stage="search").count_statuses()
    clean = any(total[s] for s in FINISHED) and not any(total[s] for s in RARE)
    sentence = "time: the median of the completed trials."
    if stuck := sum(map(record.is_stuck, record.runs.select(stage="search"))):
        sentence += f" {count_noun(stuck, 'completed trial')} ended stuck."
    sentence += " No trial was pruned, diverged or failed." if clean and not stuck else ""
    return [Section(_name_search(record), Table(columns), [sentence])]


def _name_search(record: SweepRecord) -> str:
    """Return the title of the search's results, which says that the best of several values is optimistic."""
    counts = sorted({record.search(arm).finished for arm in record.arms})
    tried = " to ".join(dict.fromkeys(str(n) for n in (counts[0], counts[-1])))
    seeds = len(findings.collect_seeds(record))
    return f"Search results (best of {tried} on {f'{seeds} seeds' if seeds > 1 else 'one seed'}: optimistic)"


def tabulate_trials(record: SweepRecord) -> list[Section]:
    """Return every trial, those of an arm best first, and the reasons for diverged and failed trials."""
    sign = findings.objective_sign(record)
    if record.spec.cells:
        return []
    ordered = [
        t
        for trials in (record.search(arm) for arm in record.arms)
        for t in sorted(trials, key=lambda t: (STATUSES.index(t.status), sign * (t.value or 0.0), t.number))
    ]
    columns = [
        words("arm", [t.arm for t in ordered]),
        Column("trial", [t.number for t in ordered]),
        words("status", [f"{t.status} (stuck)" if record.is_stuck(t) else t.status for t in ordered]),
        Column(record.spec.objective.title, [t.value for t in ordered]),
        *list_settings(record, [t.params for t in ordered]),
        Column("updates" if record.spec.is_own else "steps", [t.step for t in ordered]),
        Column("time", [format_duration(t.seconds) for t in ordered]),
    ]
    best = [record.best(arm) for arm in record.arms]
    strong = frozenset(i for i, t in enumerate(ordered) if any(t is b for b in best))
    title = f"All {count_noun(len(ordered), 'trial')}{' of the search' if record.runs.select(stage=FRESH) else ''}"
    return [Section(title, Table(columns, strong), list(_list_reasons(ordered)))]


def _list_reasons(trials: Iterable[Run]) -> Iterable[str]:
    """Yield the reasons for diverged and failed trials, grouped by arm and reason."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for t in trials:
        if t.reason and t.status in ("diverged", "failed"):
            groups.setdefault((t.arm, t.status, t.reason), []).append(t.number)
    for (arm, status, reason), numbers in groups.items():
        yield f"{arm} {join_words(map(str, sorted(numbers)))} {status}: {reason}"


@dataclass(frozen=True)
class Part:
    """A part of the report, on the terminal, on the page and in report.json."""

    tabulate: Callable[[ReportData], list[Section]]
    fold: str = ""
    """The title of the page's collapsed section that contains it; empty: it is one of the main results and is not
    collapsed."""
    values: Callable[[ReportData], dict[str, Any]] = lambda report: {}
    """The part's own keys in report.json; the keys of each arm are under "arms"."""


VERDICT, SPEED, SETTINGS, SEARCH, COST, CONFOUNDS, DIAGNOSTICS = (
    RULES,
    "How soon each arm is there",
    "Settings",
    "Search",
    "Cost",
    "Confounds",
    "Diagnostics",
)
PARTS = (
    Part(
        lambda r: tabulate_effects(r.effects, r.record.spec),
        values=lambda r: effects_to_plain(r.effects, r.record.spec),
    ),
    Part(lambda r: tabulate_confirmed(r.record, r.confirmed)),
    Part(lambda r: tabulate_challenges(r.record), VERDICT),
    Part(
        lambda r: tabulate_speeds(r.record, r.speeds, r.times),
        SPEED,
        lambda r: {"compare": cost_to_plain(r.record)},
    ),
    Part(
        lambda r: tabulate_downstream(r.downstream),
        "Downstream tasks",
        lambda r: {"downstream": r.downstream.to_dict()},
    ),
    Part(
        lambda r: tabulate_published(r.published, r.record.spec),
        "Published results",
        lambda r: {"published": [asdict(table) for table in r.published]},
    ),
    Part(lambda r: tabulate_selection(r.record), SETTINGS),
    Part(lambda r: tabulate_sensitivities(r.sensitivities), SETTINGS),
    Part(
        lambda r: tabulate_seed_sensitivities(r.seed_sensitivities),
        SETTINGS,
        lambda r: {"seed_sensitivities": r.seed_sensitivities.to_dict()} if r.seed_sensitivities else {},
    ),
    Part(lambda r: tabulate_search(r.record), SEARCH),
    Part(
        lambda r: tabulate_trials(r.record),
        SEARCH,
        lambda r: {
            "trials": [trial_to_plain(run) for arm in r.record.arms for run in r.record.search(arm)],
            "confirmations": [trial_to_plain(run) for run in r.record.runs.select(stage=FRESH)],
        },
    ),
    Part(lambda r: tabulate_usage(r.usage_unit.noun, {} if r.record.spec.cells else r.usage, r.usage_after), COST),
    Part(lambda r: tabulate_costs(r.costs, r.record.spec.compared_with), COST),
    Part(lambda r: tabulate_confounds(r.record), CONFOUNDS, lambda r: confounds_to_plain(r.record)),
    Part(
        lambda r: tabulate_layers(r.layers), DIAGNOSTICS, lambda r: {"layers": r.layers.to_dict()} if r.layers else {}
    ),
)
"""In the order of the terminal, of the page and of report.json: results on fresh seeds before those of the search."""


LEADING = ("grid", "effects", "verdict", "learning_rate", "bands", "curves")
"""The figures that show the answer, by name; only the first of the last two that exists."""


def build_document(report: ReportData) -> Document:
    """Return the report of a sweep for its writers."""
    record, objective, drawings = report.record, report.record.spec.objective, {f.name: f for f in report.drawings}
    hidden = {"curves"} if "bands" in drawings else set()
    hidden |= {"learning_rate"} if "grid" in drawings else set()
    leading = [drawings[name] for name in LEADING if name in drawings and name not in hidden]
    rest = [figure for figure in report.drawings if figure not in leading]
    details: dict[str, list[Section]] = {}
    for part in PARTS:
        if part.fold and (sections := part.tabulate(report)):
            details.setdefault(part.fold, []).extend(sections)
    answers = [section for part in PARTS if not part.fold for section in part.tabulate(report)]
    if not answers:
        answers = tabulate_search(record)
        details[SEARCH] = tabulate_trials(record)
    for fold, figures in (
        (VERDICT, [f for f in rest if f.name == "failures"]),
        (SPEED, [f for f in rest if f.name == "speed"]),
        (SEARCH, [f for f in rest if f.name not in ("failures", "speed", LAYERS)]),
        (DIAGNOSTICS, [f for f in rest if f.name == LAYERS]),
    ):
        if figures:
            details.setdefault(fold, []).append(Section("", figures=figures))
    return Document(
        record.title,
        f"{objective.metric}, {'lower' if findings.objective_sign(record) > 0 else 'higher'} is better",
        report.scale,
        report.summary if report.confirmed else "",
        statements=[report.verdict],
        figures=leading,
        answers=answers,
        details={fold: sections for fold, sections in details.items() if sections},
        appendix={"The sweep file, and how to run it again": _list_origins(report)},
        notes=report.notes,
        places=report.list_places(),
    )


def _list_origins(report: ReportData) -> list[Section]:
    """Return the sweep's file, the commands that run it again, its plugins, and the facts that all runs share."""
    record, mlflow = report.record, report.mlflow
    plugins = ", put its plugins where they were" if record.plugins else ""
    commands = [f"ablate sweep {record.name}.yaml", f"ablate report {record.name}"]
    sections = [
        Section("", code=record.spec.to_yaml()),
        Section(
            "",
            sentences=[f"Save the sweep file above as {record.name}.yaml in a new folder{plugins}, and run there:"],
            code="\n".join(commands),
        ),
    ]
    for title, facts in (
        ("The plugins that it was made with, by SHA-256", record.plugins),
        ("All runs were made with", find_common_facts(record)),
    ):
        if facts:
            rows = [[name, value] for name, value in facts.items()]
            sections.append(Section(title, Table.of_rows(["file" if facts is record.plugins else "fact", ""], rows)))
    text = f'The runs are in the MLflow experiment "{mlflow["experiment"]}" at {mlflow["tracking_uri"]}.'
    return [*sections, Section("", sentences=[text])]
