"""Tables and sections of the report, before anything renders them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

LEVELS = (0, 1, 2)  # how much a table gives way to a narrow terminal; a page shows it at 0
NOTHING = "-"  # in a cell without a value


@dataclass(frozen=True)
class Merge:
    """A rule by which neighbouring columns become one where there is no room for each."""

    level: int
    """The level from which they are one."""
    name: Callable[[Sequence[str]], str]
    """Their headers -> that of the one."""
    cell: Callable[[Sequence[str], Sequence[str]], str]
    """Their headers and the cells of a row -> the one cell."""


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
    """Whether it holds words, which begin at the left, and not numbers, which end at the right."""
    merge: Merge | None = None
    """By which it and its neighbours with the same rule become one."""


@dataclass(frozen=True)
class Table:
    """Columns of equal length."""

    columns: list[Column]
    strong: frozenset[int] = frozenset()
    """The rows that stand out."""

    @property
    def header(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    @property
    def rows(self) -> list[list[str]]:
        """The cells, row by row."""
        return [list(row) for row in zip(*(column.cells for column in self.columns), strict=True)]

    def merge_at(self, level: int) -> Table:
        """Return the table with those columns merged that are one at `level`."""
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
    """A part of the report: a title, a table where there is one, and sentences below it."""

    title: str
    table: Table | None = None
    sentences: list[str] = field(default_factory=list)
