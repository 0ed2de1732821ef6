"""The sections that every report consists of, each with a title, sentences, a table and figures. One writer each shows
them on a terminal, as an HTML page, in MLflow and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ablate.config.formatting import format_number
from ablate.plots.figure import Figure
from ablate.verdict.intervals import Estimate
from ablate.verdict.statements import format_estimate

NOTHING = "-"  # in a cell without a value


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
    """A value for each row; None: there is none."""
    format: Callable[[Any], str] = format_cell
    """The text of a value that is not None."""
    words: bool = False
    """Whether it contains text, which is left-aligned, and not numbers, which are right-aligned."""
    is_setting: bool = False
    """Whether it is a searched setting; where a terminal is too narrow, all of them share a column."""

    @property
    def cells(self) -> list[str]:
        """The values as text."""
        return [NOTHING if value is None else self.format(value) for value in self.values]


def words(name: str, values: Iterable[Any], format: Callable[[Any], str] = str) -> Column:  # noqa: A002 - as Column's
    """Return a column of text."""
    return Column(name, list(values), format, words=True)


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

    def join_settings(self) -> Table:
        """Return the table with its settings in one column, as lr=0.001 alpha=0.25."""
        settings = [column for column in self.columns if column.is_setting]
        if not settings:
            return self
        cells = [
            " ".join(f"{one.name}={cell}" for one, cell in zip(settings, row, strict=True) if cell != NOTHING)
            or NOTHING
            for row in zip(*(column.cells for column in settings), strict=True)
        ]
        place = self.columns.index(settings[0])
        before, after = self.columns[:place], [c for c in self.columns[place:] if not c.is_setting]
        return Table([*before, words("settings", cells), *after], self.strong)


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
    """Its question, beside the title."""
    warning: str = ""
    summary: str = ""
    """The answer in one line; "": there is none yet."""
    heading: str = "Verdict"
    statements: list[str] = field(default_factory=list)
    """The answer in full."""
    closing: bool = False
    """Whether a terminal shows the statements last, where they stay in view."""
    figures: list[Figure] = field(default_factory=list)
    """The figures that show the answer, the most important first."""
    answers: list[Section] = field(default_factory=list)
    """The main results."""
    details: dict[str, list[Section]] = field(default_factory=dict)
    """Title -> sections of a part that a page shows folded."""
    appendix: dict[str, list[Section]] = field(default_factory=dict)
    """The same for parts that a terminal leaves out."""
    notes: list[str] = field(default_factory=list)
    """Warnings; lines after the first are commands."""
    places: list[str] = field(default_factory=list)
    """Lines on the places of its files, for a terminal."""
