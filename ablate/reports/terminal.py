"""The report on a terminal."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.config.program import name_program
from ablate.reports.report_data import ReportData
from ablate.reports.sections import PARTS, SPREADS
from ablate.reports.table import LEVELS, Section, Table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table as RichTable

_COLOURS = {"completed": "green", "running": "cyan", "diverged": "red", "failed": "red", "pruned": "yellow"}


def render(report: ReportData, console: Console) -> None:
    """Print the report, with the verdict first and again, in one line, at its end, which is visible on the terminal. At
    80 columns no number is truncated: text is wrapped, and settings share one column."""
    objective = report.record.spec.objective
    _print_title(console, f"{report.record.title}: {objective.metric}, {objective.direction}")
    _print_text(console, report.scale, style="bold yellow")
    _print_title(console, "Verdict")
    _print_text(console, report.verdict)
    for part in PARTS:
        _print_sections(console, part.tabulate(report))
    if report.spreads:
        _print_title(console, SPREADS)
        for text in report.spreads:
            _print_text(console, text, indent=2)
    for note in report.notes:
        text, *commands = note.split("\n")
        _print_text(console, f"\nNote: {text}")
        for command in commands:
            _print_text(console, command, whole=True)
    _print_places(console, report)
    if report.confirmed:
        _print_text(console, f"\n{report.summary}", style="bold")


def render_summaries(reports: Sequence[ReportData], index: Path | None, console: Console) -> None:
    """Print the verdict of each of several sweeps in one line, and the paths of their pages."""
    for report in reports:
        _print_title(console, f"{report.record.title}: {report.record.spec.objective.metric}")
        _print_text(console, report.scale, style="bold yellow")
        _print_text(console, report.summary)
        _print_text(console, f"{_shorten_path(report.folder)}/report.html", whole=True)
    if index:
        _print_title(console, "All of them on one page")
        _print_text(console, _shorten_path(index), whole=True)


def to_text(report: ReportData, width: int = 100) -> str:
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
        render(report, console)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _print_sections(console: Console, sections: Sequence[Section]) -> None:
    for section in sections:
        if section.title:
            _print_title(console, section.title)
        if section.table:
            _print_table(console, section.table)
        elif not section.title:
            console.print()
        for text in section.sentences:
            _print_text(console, text)


def _build_table(table: Table, level: int) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(box=box.SIMPLE, pad_edge=False, collapse_padding=True, header_style="bold")
    merged = table.merge_at(level)
    for column in merged.columns:
        broken = column.name.replace("/", "/\n").replace("_", "_\n") if level else column.name
        grid.add_column(
            Text(broken),
            justify="left" if column.words else "right",
            overflow="fold",
            min_width=max(len(word) for cell in [broken, *column.cells] for word in cell.split() or [""]),
        )
    for i, row in enumerate(merged.rows):
        style = "bold" if i in merged.strong else None
        grid.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row), style=style)
    return grid


def _print_table(console: Console, table: Table) -> None:
    """Print the table at the first level that fits: as it is, with headers broken, with the settings in one column."""
    from rich.measure import Measurement

    unlimited = console.options.update(width=10_000)
    for level in LEVELS:
        grid = _build_table(table, level)
        if level == LEVELS[-1] or Measurement.get(console, unlimited, grid).maximum <= console.width:
            console.print(grid)
            return


def _print_places(console: Console, report: ReportData) -> None:
    _print_title(console, "Files")
    if (report.folder / "report.html").exists():
        _print_text(console, f"{_shorten_path(report.folder)}/report.html: the page, for a browser", whole=True)
        files = ", ".join(["report.json", "table.txt", *(path.name for path in report.figures)])
        _print_text(console, f"in the same folder: {files}")
    where = report.mlflow
    run = 'run "report" of the experiment' if where.get("run_id") else "the experiment"
    _print_text(console, f'MLflow: {run} "{where["experiment"]}" at {where["tracking_uri"]}', whole=True)
    _print_text(console, f"Open it with: {name_program()} ui")


def _shorten_path(path: Path) -> str:
    """Return `path` relative to the current folder if it is inside it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _print_title(console: Console, text: str) -> None:
    _print_text(console, f"\n{text}", style="bold")


def _print_text(console: Console, text: str, style: str | None = None, whole: bool = False, indent: int = 0) -> None:
    """Print a paragraph; without interpreting markup. `whole` keeps paths on one line, so that they can be copied."""
    from rich.padding import Padding
    from rich.text import Text

    if text:
        line: RenderableType = Padding(Text(text), (0, 0, 0, indent)) if indent else Text(text)
        console.print(line, style=style, soft_wrap=whole)
