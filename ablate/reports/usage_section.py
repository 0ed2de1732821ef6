"""The section of the report on the compute of each arm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ablate.config.formatting import format_count, format_duration
from ablate.reports.columns import word_column
from ablate.reports.report_data import ReportData
from ablate.reports.table import Column, Merge, Section, Table
from ablate.reports.usage import Usage

KINDS = {
    "selection": "to choose among its candidates",
    "confirmation": "on fresh seeds",
    "crossed": "at the settings of another arm",
}
"""Of runs after the search."""


def tabulate_usage(report: ReportData) -> list[Section]:
    """Return the compute of each arm's trials, and of its runs after the search."""
    search, noun = report.usage, report.usage_unit.noun
    after = dict(zip(KINDS, (report.selection_usage, report.confirmation_usage, report.crossed_usage), strict=True))
    own = [] if report.record.spec.at_grid else _usage_columns("", noun, search.values())
    columns = [word_column("arm", search), *own]
    begun = [kind for kind, usage in after.items() if any(used.trials for used in usage.values())]
    for kind in begun:
        columns += _usage_columns(f"{kind} ", noun, [after[kind][arm] for arm in search], Merge(1, _name, _join))
    sentences = [f"{'; '.join(f'{kind}: {KINDS[kind]}' for kind in begun)}."] if begun else []
    return [
        Section(f"Compute per arm ({' / '.join(['search', *begun])}): runs, {noun} and time", Table(columns), sentences)
    ]


def _name(names: Sequence[str]) -> str:
    return names[0].rpartition(" ")[0]


def _join(names: Sequence[str], cells: Sequence[str]) -> str:
    return ", ".join(cells)


def _usage_columns(prefix: str, noun: str, usage: Iterable[Usage], merge: Merge | None = None) -> list[Column]:
    rows = list(usage)
    return [
        Column(f"{prefix}runs", [str(row.trials) for row in rows], merge=merge),
        Column(f"{prefix}{noun}", [format_count(row.items) for row in rows], merge=merge),
        Column(f"{prefix}time", [format_duration(row.seconds) for row in rows], merge=merge),
    ]
