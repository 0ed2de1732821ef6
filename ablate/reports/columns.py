"""Columns and cells that several sections of the report share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ablate.config.formatting import format_setting, format_uncertain, shorten_paths
from ablate.reports.labels import list_searched
from ablate.reports.table import NOTHING, SETTINGS, Column, Table
from ablate.sweeps.records import SweepRecord


def word_column(name: str, cells: Iterable[str]) -> Column:
    """Return a left-aligned column of text."""
    return Column(name, list(cells), words=True)


def word_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of text columns."""
    return Table([word_column(name, [row[i] for row in rows]) for i, name in enumerate(header)])


def setting_columns(record: SweepRecord, params: Iterable[Mapping[str, Any]]) -> list[Column]:
    """Return a column for each searched parameter; `params` are the settings of each row."""
    rows = list(params)
    names = shorten_paths(list_searched(record.spec))
    return [
        Column(name, [format_setting(row[path]) if path in row else NOTHING for row in rows], merge=SETTINGS)
        for path, name in names.items()
    ]


def format_signed(value: float | None) -> str:
    """Return a number with its sign."""
    return NOTHING if value is None else format_uncertain(value, None, sign=True)
