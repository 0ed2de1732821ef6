"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table


def build_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> Table:
    """Return a table without lines; the columns named in `right` are right-aligned. Text that does not fit is wrapped
    between words, never inside a word."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(header):
        cells = [name, *(row[i] for row in rows)]
        word = max(len(word) for cell in cells for word in cell.split())
        whole = word == max(map(len, cells))  # nothing to fold at: only the other columns give way
        side: Literal["left", "right"] = "right" if name in right else "left"
        grid.add_column(Text(name), justify=side, overflow="fold", min_width=word, no_wrap=whole)
    for row in rows:
        grid.add_row(*map(Text, row))
    return grid
