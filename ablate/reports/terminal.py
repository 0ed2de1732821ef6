"""A report on a terminal."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.reports.section import Document, Section, Table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

_COLOURS = {"completed": "green", "running": "cyan", "diverged": "red", "failed": "red", "pruned": "yellow"}


def render(document: Document, console: Console) -> None:
    """Print the report, with its answer first and again, in one line, at its end, which is visible on the terminal. At
    80 columns no number is truncated: text is wrapped, and settings share one column."""
    _print_title(console, ": ".join(filter(None, [document.title, document.question])))
    _print_text(console, document.warning, style="bold yellow")
    full = [Section(document.heading, sentences=document.statements)]
    sections = [*document.answers, *(section for sections in document.details.values() for section in sections)]
    _print_sections(console, [*sections, *full] if document.closing else [*full, *sections])
    for note in document.notes:
        text, *commands = note.split("\n")
        _print_text(console, f"\nNote: {text}")
        for command in commands:
            _print_text(console, command, whole=True)
    _print_title(console, "Files" if document.places else "")
    for line in document.places:
        _print_text(console, line, whole="/" in line)
    if document.summary:
        _print_text(console, f"\n{document.summary}", style="bold")


def to_text(document: Document, width: int = 100) -> str:
    """Return what `render` prints, without colours, `width` characters wide."""
    from rich.console import Console

    plain: dict[str, Any] = {
        "color_system": None,
        "legacy_windows": False,
        "force_terminal": False,
        "force_jupyter": False,
    }
    console = Console(file=io.StringIO(), width=width, **plain)
    with console.capture() as capture:
        render(document, console)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def shorten_path(path: Path) -> str:
    """Return `path` relative to the current folder if it is inside it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _print_sections(console: Console, sections: Iterable[Section]) -> None:
    for section in sections:
        if not section.table and not section.sentences:
            continue
        if section.title:
            _print_title(console, section.title)
        if section.table:
            _print_table(console, section.table)
        elif not section.title:
            console.print()
        for text in section.sentences:
            _print_text(console, text)


def _build_table(table: Table, breaks: bool) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(box=box.SIMPLE, pad_edge=False, collapse_padding=True, header_style="bold")
    for column in table.columns:
        broken = column.name.replace("/", "/\n").replace("_", "_\n") if breaks else column.name
        grid.add_column(
            Text(broken),
            justify="left" if column.words else "right",
            overflow="fold",
            min_width=max(len(word) for cell in [broken, *column.cells] for word in cell.split() or [""]),
        )
    for i, row in enumerate(table.rows):
        style = "bold" if i in table.strong else None
        grid.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row), style=style)
    return grid


def _print_table(console: Console, table: Table) -> None:
    """Print the table at the first level that fits: as it is, with headers broken, with the settings in one column."""
    from rich.measure import Measurement

    unlimited = console.options.update(width=10_000)
    grid = _build_table(table, False)
    for narrower in (table, table.join_settings()):
        if Measurement.get(console, unlimited, grid).maximum > console.width:
            grid = _build_table(narrower, True)
    console.print(grid)


def _print_title(console: Console, text: str) -> None:
    _print_text(console, f"\n{text}", style="bold")


def _print_text(console: Console, text: str, style: str | None = None, whole: bool = False) -> None:
    """Print a paragraph, without interpreting markup. `whole` keeps paths on one line, so that they can be copied."""
    from rich.text import Text

    if text:
        console.print(Text(text), style=style, soft_wrap=whole)
