"""The report as one HTML file that needs nothing beside it: no scripts, no fonts, no files, no network."""

from __future__ import annotations

import base64
from importlib import resources
from typing import Any

from ablate.reports import fairness
from ablate.reports.report_data import ReportData
from ablate.reports.sections import PARTS

_TEMPLATE = "page.html.j2"


def render_page(report: ReportData) -> str:
    """Return the page. All that comes from the sweep is escaped."""
    from jinja2 import Environment, StrictUndefined

    text = resources.files("ablate.reports").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    record = report.record
    before = [section for part in PARTS if not part.background for section in part.tabulate(report)]
    after = [section for part in PARTS if part.background for section in part.tabulate(report)]
    return environment.from_string(text).render(
        title=record.title,
        objective=record.spec.objective,
        scale=report.scale,
        verdict=report.verdict,
        spreads=report.spreads,
        before=before,
        figures=_embed_figures(report),
        after=after,
        notes=report.notes,
        yaml=record.spec.to_yaml(),
        plugins=record.plugins,
        file=f"{record.name}.yaml",
        commands=list_commands(report),
        common=fairness.find_common_facts(record),
        mlflow=report.mlflow,
    )


def list_commands(report: ReportData) -> list[str]:
    """Return the commands that run the sweep again, from its file saved as NAME.yaml."""
    record = report.record
    return [f"ablate sweep {record.name}.yaml --fresh", f"ablate report {record.name}"]


def _embed_figures(report: ReportData) -> list[dict[str, Any]]:
    """Return each figure as a data URI, with its caption."""
    return [
        {
            "uri": f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}",
            "caption": report.captions.get(path.name, path.stem),
        }
        for path in report.figures
    ]
