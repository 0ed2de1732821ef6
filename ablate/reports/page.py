"""The report as one HTML file that needs nothing beside it: no scripts, no fonts, no files, no network."""

from __future__ import annotations

import base64
from importlib import resources
from typing import Any

from ablate.reports import fairness, sections
from ablate.reports.contents import Contents

_TEMPLATE = "page.html.j2"


def html(report: Contents) -> str:
    """The page. All that comes from the sweep is escaped."""
    from jinja2 import Environment, StrictUndefined

    text = resources.files("ablate.reports").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    record = report.record
    before = [*sections.confirmed(report), *sections.downstream(report), *sections.published(report)]
    before += [*sections.search(report), *sections.savings(report), *sections.costs(report)]
    before += sections.sensitivities(report)
    after = [*sections.importances(report), *sections.comparability(report), *sections.trials(report)]
    return environment.from_string(text).render(
        title=record.title,
        objective=record.spec.objective,
        scale=report.scale,
        verdict=report.verdict,
        spreads=report.spreads,
        before=before,
        figures=_figures(report),
        after=after,
        notes=report.notes,
        yaml=record.spec.to_yaml(),
        plugins=record.plugins,
        file=f"{record.name}.yaml",
        commands=commands(report),
        common=fairness.common(record),
        mlflow=report.mlflow,
    )


def commands(report: Contents) -> list[str]:
    """What makes the sweep again, from its file saved as NAME.yaml."""
    record = report.record
    return [f"ablate sweep {record.name}.yaml --fresh", f"ablate report {record.name}"]


def _figures(report: Contents) -> list[dict[str, Any]]:
    """Each figure as a data URI, with its caption."""
    return [
        {
            "uri": f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}",
            "caption": report.captions.get(path.name, path.stem),
        }
        for path in report.figures
    ]
