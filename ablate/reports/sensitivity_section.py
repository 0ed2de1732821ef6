"""The sections of the report on the importance of the learning rate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ablate.config.formatting import count_noun, format_number, format_setting, join_words
from ablate.reports.columns import word_column
from ablate.reports.report_data import ReportData
from ablate.reports.sensitivity import MINIMUM_RATES, Sensitivity
from ablate.reports.table import NOTHING, Column, Section, Table
from ablate.verdict.intervals import Estimate
from ablate.verdict.statements import format_estimate

TITLE = "Learning-rate sensitivity (Wortsman et al. 2023)"
MEANING = (
    "The mean, over log learning rates in the searched range, of the loss (at most the initial loss) minus the "
    "lowest loss, in the unit of the loss: a lower value means that less tuning is needed."
)


def tabulate_sensitivities(report: ReportData) -> list[Section]:
    """Return the learning-rate sensitivity of each arm; nothing if it is unknown for all."""
    known = report.sensitivities
    if not any(known.values()):
        return []
    columns = [
        word_column("arm", known),
        Column("sensitivity", [format_number(s.value) if s else NOTHING for s in known.values()]),
        Column("n trials", [str(s.n) if s else NOTHING for s in known.values()]),
        Column("diverged", [str(s.diverged) if s else NOTHING for s in known.values()]),
        Column("stuck", [str(s.stuck) if s else NOTHING for s in known.values()]),
        Column("pruned", [str(s.pruned) if s else NOTHING for s in known.values()]),
        Column(
            "range", [f"{format_setting(s.low)} to {format_setting(s.high)}" if s else NOTHING for s in known.values()]
        ),
    ]
    return [Section(TITLE, Table(columns), list(_describe_sensitivities(known)))]


def tabulate_seed_sensitivities(report: ReportData) -> list[Section]:
    """Return the learning-rate sensitivity over the seeds of each arm of a sweep that tests the points of a grid;
    nothing of other sweeps."""
    known = report.seed_sensitivities
    if known is None or not any(row.seeds for row in known.rows.values()):
        return []
    rows = known.rows
    columns = [
        word_column("arm", rows),
        Column("sensitivity", [_format(row.estimate) for row in rows.values()]),
        Column("n seeds", [str(len(row.seeds)) for row in rows.values()]),
        Column("runs that failed", [f"{row.failed} of {row.runs}" for row in rows.values()]),
    ]
    span = f"Rates from {format_setting(known.low)} to {format_setting(known.high)}, mean over seeds ± 95 %."
    sentences = [f"{MEANING} {span}", "A diverged run counts with the initial loss, a stuck one with its own."]
    if some := [f"{name} ({count_noun(row.untrained, 'seed')})" for name, row in rows.items() if row.untrained]:
        why = "where seeds trained at no rate, as their losses say nothing of tuning"
        sentences.append(f"None {why}: {join_words(some)}.")
    sections = [Section(f"{TITLE}, over seeds", Table(columns), sentences)]
    if known.differences:
        pairs = known.differences
        columns = [
            word_column("arm", [pair.row for pair in pairs]),
            word_column("less", [pair.other for pair in pairs]),
            Column("difference", [_format(pair.estimate, sign=True) for pair in pairs]),
            word_column("", [pair.word for pair in pairs]),
        ]
        shared = f"{count_noun(len(pairs), 'difference')}, in pairs of seeds: they share an error of 5 %, apart from "
        sections.append(Section("Differences of sensitivity", Table(columns), [f"{shared}that of the verdict."]))
    return sections


def sensitivities_to_plain(report: ReportData) -> dict[str, Any]:
    """Return the part's values in report.json."""
    known = report.seed_sensitivities
    return {} if known is None else {"seed_sensitivities": known.to_dict()}


def _format(estimate: Estimate | None, sign: bool = False) -> str:
    return format_estimate(estimate, sign) if estimate else NOTHING


def _describe_sensitivities(sensitivities: dict[str, Sensitivity | None]) -> Iterable[str]:
    known = {arm: s for arm, s in sensitivities.items() if s}
    if any(s.value is not None for s in known.values()):
        yield MEANING
    if failed := [arm for arm, s in known.items() if s.value is None]:
        yield f"None for {join_words(failed)}: none of the trials trained, and then the losses say nothing of tuning."
    if any(s.diverged or s.pruned for s in known.values()):
        yield "A diverged trial counts with the initial loss, a pruned trial with its last reported loss."
    if any(s.stuck for s in known.values()):
        yield "A stuck trial, which ended without having learned, counts with its own loss."
    if hulls := [arm for arm, s in known.items() if s.envelope]:
        yield (
            f"For {join_words(hulls)}, which search more parameters, it is computed from the lower convex hull of the "
            "trials."
        )
    if len({(s.low, s.high) for s in known.values()}) > 1:
        yield "The ranges differ, so that these values cannot be compared."
    if none := [arm for arm, s in sensitivities.items() if not s]:
        yield f"None for {join_words(none)}: it needs {MINIMUM_RATES} finished trials at positive learning rates."
