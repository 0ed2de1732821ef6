"""One page for several sweeps: the verdict, the results and the figure of each, with a link to its own page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from ablate.reports.charts.arms import chart_arms
from ablate.reports.page import build_environment, embed_charts, list_answers
from ablate.reports.report_data import ReportData

INDEX, PAGE = "index.html", "report.html"


def write_index(reports: Sequence[ReportData], folder: Path) -> Path:
    """Write index.html into `folder`, which contains the reports' folders or is next to them, and return its path."""
    sweeps, charts = [], []
    for number, report in enumerate(reports):
        chart = chart_arms(report.record, report.confirmed)
        if chart:
            chart = replace(chart, name=f"{chart.name}-{number}")
            charts.append(chart)
        sweeps.append(
            {
                "title": report.record.title,
                "link": quote(Path(os.path.relpath(report.folder / PAGE, folder)).as_posix()),
                "scale": report.scale,
                "summary": report.summary,
                "answers": list_answers(report),
                "chart": chart,
            }
        )
    text = build_environment().get_template("index.html.j2").render(sweeps=sweeps, **embed_charts(charts))
    path = folder / INDEX
    path.write_text(text, encoding="utf-8")
    return path
