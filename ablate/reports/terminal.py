"""The report on a terminal."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.reports import sections
from ablate.reports.cells import LEVELS, Cells, Section
from ablate.reports.contents import Contents

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_COLOURS = {"completed": "green", "running": "cyan", "diverged": "red", "failed": "red", "pruned": "yellow"}
_ORDER = (
    sections.confirmed, sections.downstream, sections.published, sections.search, sections.savings, sections.costs,
    sections.sensitivities, sections.trials, sections.importances, sections.comparability,
)  # fmt: skip


def render(report: Contents, console: Console) -> None:
    """Prints the report. At 80 columns no number is cut: what does not fit is folded, settings share one column."""
    objective = report.record.spec.objective
    _title(console, f"{report.record.title}: {objective.metric}, {objective.direction}")
    _say(console, report.scale, style="bold yellow")
    for part in _ORDER:
        _sections(console, part(report))
    _title(console, "What this shows")
    _say(console, report.verdict)
    if report.spreads:
        _say(console, "\nWhat the settings do within an arm, best to worst:")
        for text in report.spreads:
            _say(console, text, indent=2)
    for note in report.notes:
        _say(console, f"\nNote: {note}")
    _places(console, report)


def plain(report: Contents, width: int = 100) -> str:
    """What `render` prints, without colours, `width` characters wide."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False, force_terminal=False)
    with console.capture() as capture:
        render(report, console)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _sections(console: Console, found: Sequence[Section]) -> None:
    for section in found:
        if section.title:
            _title(console, section.title)
        if section.table:
            _fit(console, section.table)
        elif not section.title:
            console.print()
        for text in section.said:
            _say(console, text)


def _table(cells: Cells, level: int) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True, header_style="bold")
    merged = cells.at(level)
    for column in merged.columns:
        broken = column.name.replace("/", "/\n").replace("_", "_\n") if level else column.name
        table.add_column(
            Text(broken),
            justify="left" if column.words else "right",
            overflow="fold",
            min_width=max(len(word) for cell in [broken, *column.cells] for word in cell.split() or [""]),
        )
    for i, row in enumerate(merged.rows):
        style = "bold" if i in merged.strong else None
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row), style=style)
    return table


def _fit(console: Console, cells: Cells) -> None:
    """Prints the table at the first level that fits: as it is, with headers broken, with the settings in one column."""
    from rich.measure import Measurement

    unlimited = console.options.update(width=10_000)
    for level in LEVELS:
        table = _table(cells, level)
        if level == LEVELS[-1] or Measurement.get(console, unlimited, table).maximum <= console.width:
            console.print(table)
            return


def _places(console: Console, report: Contents) -> None:
    _title(console, "Where it is")
    for path in report.figures:
        _say(console, _short(path), whole=True)
    _say(console, f"{_short(report.folder)}/report.html, report.json and table.txt", whole=True)
    where = report.mlflow
    run = 'run "report" of the experiment' if where.get("run_id") else "the experiment"
    _say(console, f'MLflow: {run} "{where["experiment"]}" at {where["tracking_uri"]}', whole=True)
    _say(console, "Open it with: ablate ui")


def _short(path: Path) -> str:
    """Relative to the current folder where it lies below it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _title(console: Console, text: str) -> None:
    _say(console, f"\n{text}", style="bold")


def _say(console: Console, text: str, style: str | None = None, whole: bool = False, indent: int = 0) -> None:
    """A paragraph; nothing in it is taken for markup. `whole` keeps paths on one line, to be copied."""
    from rich.padding import Padding
    from rich.text import Text

    if text:
        line: RenderableType = Padding(Text(text), (0, 0, 0, indent)) if indent else Text(text)
        console.print(line, style=style, soft_wrap=whole)
