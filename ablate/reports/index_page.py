"""One page for several sweeps: the verdict, the results and the figure of each, with a link to its own page."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from ablate.reports.page import build_page, fold, show_figure, show_section, warn
from ablate.reports.report import PAGE, Report

INDEX = "index.html"


def write_index(reports: Sequence[Report], folder: Path) -> Path:
    """Write index.html into `folder`, which contains the reports' folders or is next to them, and return its path."""
    title = f"{len(reports)} sweeps"
    parts = [f"<header><h1>{title}</h1></header>"]
    for report in reports:
        document = report.document
        link = quote(Path(os.path.relpath(report.folder / PAGE, folder)).as_posix())
        parts.append(f'<h2><a href="{link}">{html.escape(document.title)}</a></h2>{warn(document.warning)}')
        parts.append(f'<div class="verdict"><p>{html.escape(report.summary)}</p></div>')
        parts += [show_section(section, with_sentences=False) for section in document.answers]
        parts += [
            fold("All arms on fresh seeds", show_figure(figure), is_open=len(reports) <= 3)
            for figure in document.figures
            if figure.name == "verdict"
        ]
    shared = (
        "Each sweep has its own error control: the verdicts of several sweeps together err more often than those of"
    )
    path = folder / INDEX
    path.write_text(build_page(title, [*parts, f'<p class="quiet">{shared} one.</p>']), encoding="utf-8")
    return path
