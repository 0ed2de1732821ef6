"""Tables and sections of the report, before anything renders them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    cells: list[str]
    words: bool = False
    """Whether it contains text, which is left-aligned, and not numbers, which are right-aligned."""
    merge: Merge | None = None
    """The rule for merging it with neighbours that have the same rule."""


@dataclass(frozen=True)
class Table:
    """Columns of equal length."""

    columns: list[Column]
    strong: frozenset[int] = frozenset()
    """The highlighted rows."""

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
    """A part of the report: a title, an optional table, and sentences below it."""

    title: str
    table: Table | None = None
    sentences: list[str] = field(default_factory=list)
