"""What every report consists of: sections, each with a title, sentences, a table and figures. One writer each shows
them on a terminal, as an HTML page, in MLflow and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ablate.config.formatting import format_number, format_setting, shorten_paths
from ablate.plots.figure import Figure
from ablate.reports.labels import list_searched
from ablate.sweeps.records import SweepRecord
from ablate.verdict.intervals import Estimate
from ablate.verdict.statements import format_estimate

LEVELS = (0, 1, 2)  # how much a table gives way to a narrow terminal; a page shows it at 0
NOTHING = "-"  # in a cell without a value


@dataclass(frozen=True)
class Merge:
    """A rule for merging neighbouring columns if there is not enough space."""

    level: int
    """The level from which they are merged."""
    name: Callable[[Sequence[str]], str]
    """Their headers -> the merged header."""
    cell: Callable[[Sequence[str], Sequence[str]], str]
    """Their headers and the cells of a row -> the merged cell."""


COUNTS = Merge(1, "/".join, lambda names, cells: "/".join(cells))
"""pruned/diverged/failed, 0/3/0."""
SETTINGS = Merge(
    2,
    lambda names: "settings",
    lambda names, cells: (
        " ".join(f"{n}={c}" for n, c in zip(names, cells, strict=True) if c != NOTHING) or NOTHING  # as format_settings
    ),
)
"""lr=0.001 alpha=0.25."""


def format_cell(value: Any) -> str:
    """Return a value as a table shows it: a number with few digits, a mean with its interval."""
    if isinstance(value, Estimate):
        return format_estimate(value)
    return format_number(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    values: Sequence[Any]
    """None: there is none."""
    format: Callable[[Any], str] = format_cell
    """Of a value that there is."""
    words: bool = False
    """Whether it contains text, which is left-aligned, and not numbers, which are right-aligned."""
    merge: Merge | None = None
    """The rule for merging it with neighbours that have the same rule."""

    @property
    def cells(self) -> list[str]:
        """The values as text."""
        return [NOTHING if value is None else self.format(value) for value in self.values]


def words(name: str, values: Iterable[Any], format: Callable[[Any], str] = str) -> Column:  # noqa: A002 - as Column's
    """Return a column of text."""
    return Column(name, list(values), format, words=True)


def list_settings(record: SweepRecord, params: Iterable[Mapping[str, Any]]) -> list[Column]:
    """Return a column for each searched parameter; `params` are the settings of each row."""
    rows = list(params)
    names = shorten_paths(list_searched(record.spec))
    return [
        Column(name, [format_setting(row[path]) if path in row else None for row in rows], merge=SETTINGS)
        for path, name in names.items()
    ]


@dataclass(frozen=True)
class Table:
    """Columns of equal length."""

    columns: list[Column]
    strong: frozenset[int] = frozenset()
    """The highlighted rows."""

    @classmethod
    def of_rows(cls, header: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = False) -> Table:
        """Return a table of texts; with `numbers`, all columns but the first are right-aligned."""
        columns = [[row[i] for row in rows] for i in range(len(header))]
        return cls([Column(name, columns[i], words=not (numbers and i)) for i, name in enumerate(header)])

    @property
    def header(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    @property
    def rows(self) -> list[list[str]]:
        """The cells, row by row."""
        return [list(row) for row in zip(*(column.cells for column in self.columns), strict=True)]

    def merge_at(self, level: int) -> Table:
        """Return the table with the columns that have a rule for `level` merged."""
        columns: list[Column] = []
        groups: list[list[Column]] = []
        for column in self.columns:
            if groups and column.merge is not None and groups[-1][-1].merge is column.merge:
                groups[-1].append(column)
            else:
                groups.append([column])
        for group in groups:
            merge = group[0].merge
            if merge is None or level < merge.level:
                columns += group
                continue
            names = [column.name for column in group]
            cells = [merge.cell(names, row) for row in zip(*(column.cells for column in group), strict=True)]
            columns.append(Column(merge.name(names), cells, words=merge is SETTINGS, merge=merge))
        return Table(columns, self.strong)


@dataclass(frozen=True)
class Section:
    """A part of a report. A terminal leaves out its figures."""

    title: str
    table: Table | None = None
    sentences: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    code: str = ""
    """Lines that are shown as they are."""


@dataclass(frozen=True)
class Document:
    """A report as its writers take it."""

    title: str
    question: str = ""
    """What it is about, beside the title."""
    warning: str = ""
    summary: str = ""
    """The answer in one line; "": there is none yet."""
    heading: str = "Verdict"
    statements: list[str] = field(default_factory=list)
    """The answer in full."""
    closing: bool = False
    """Whether a terminal shows the statements last, where they stay in view."""
    figures: list[Figure] = field(default_factory=list)
    """Those that show the answer, the most important first."""
    answers: list[Section] = field(default_factory=list)
    """The main results."""
    details: dict[str, list[Section]] = field(default_factory=dict)
    """Title -> sections of a part that a page shows folded."""
    appendix: dict[str, list[Section]] = field(default_factory=dict)
    """The same, of parts that a terminal leaves out."""
    notes: list[str] = field(default_factory=list)
    """Warnings; lines after the first are commands."""
    places: list[str] = field(default_factory=list)
    """Where its files are, for a terminal."""
