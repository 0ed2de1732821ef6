"""The report as one self-contained HTML file: no fonts, no other files, no network. Its figures are interactive
(`ablate.reports.charts`); the results come first, the rest is collapsed."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.reports import fairness, findings
from ablate.reports.charts.arms import chart_arms
from ablate.reports.charts.chart import Chart
from ablate.reports.charts.curves import chart_curves
from ablate.reports.charts.effects import chart_effects
from ablate.reports.charts.library import pack_library
from ablate.reports.charts.parameters import chart_grid, chart_panel, is_rate, list_confirmed
from ablate.reports.figure_data import collect_panels
from ablate.reports.layer_figures import PREFIX
from ablate.reports.report_data import ReportData
from ablate.reports.sections import DIAGNOSTICS, PARTS, SEARCH, SETTINGS, SPREADS, VERDICT, tabulate_search
from ablate.reports.table import Section

if TYPE_CHECKING:
    from jinja2 import Environment

MANY = 5  # arms above which the verdict is a line, with its sentences folded


@dataclass
class Fold:
    """A collapsed part of the page."""

    title: str
    hint: str = ""
    sentences: list[str] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    heading: str = ""
    bullets: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    figures: list[dict[str, str]] = field(default_factory=list)


def render_page(report: ReportData) -> str:
    """Return the page. All values from the sweep are escaped."""
    record = report.record
    collected = collect_panels(record)
    panels = [chart_panel(record, panel, list(list_confirmed(report.confirmed, panel))) for panel in collected]
    leading = next((chart for chart, panel in zip(panels, collected, strict=True) if is_rate(panel)), None)
    if record.spec.at_grid:
        leading = chart_grid(record, report.confirmed)
    pair = [chart for chart in (leading, chart_curves(record)) if chart]
    arms = chart_arms(record, report.confirmed)
    effects = chart_effects(record, report.effects)
    answers = list_answers(report)
    charts = [
        *([effects] if effects else []),
        *([arms] if arms else []),
        *pair,
        *(panel for panel in panels if panel is not leading),
    ]
    unfinished = findings.list_unfinished(record)
    return (
        build_environment()
        .get_template("page.html.j2")
        .render(
            title=record.title,
            objective=record.spec.objective,
            scale=report.scale,
            summary=report.summary if report.confirmed else "",
            verdict=report.verdict,
            long=len(report.confirmed) > MANY,
            unfinished=unfinished,
            answers=answers,
            effects=effects,
            arms=arms,
            pair=pair,
            notes=[note for note in report.notes if note not in unfinished],
            folds=_build_folds(report, [panel for panel in panels if panel is not leading], answers),
            images={path.name: embed_image(path) for path in report.figures if not path.name.startswith(PREFIX)},
            yaml=record.spec.to_yaml(),
            plugins=record.plugins,
            file=f"{record.name}.yaml",
            commands=list_commands(report),
            common=fairness.find_common_facts(record),
            mlflow=report.mlflow,
            **embed_charts(charts),
        )
    )


def list_answers(report: ReportData) -> list[Section]:
    """Return the tables at the top of the page: the results on fresh seeds or, before there are any, those of the
    search."""
    return [s for part in PARTS if not part.fold for s in part.tabulate(report)] or tabulate_search(report)


def list_commands(report: ReportData) -> list[str]:
    """Return the commands that run the sweep again, from its file saved as NAME.yaml."""
    record = report.record
    return [f"ablate sweep {record.name}.yaml --fresh", f"ablate report {record.name}"]


def build_environment() -> Environment:
    """Return the environment that renders the templates and escapes all values."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ablate.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["keep_together"] = _keep_together
    return environment


def _keep_together(text: object) -> str:
    """Return `text` with no-break spaces in numbers: a narrow cell breaks between them."""
    return str(text).replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")


def embed_charts(charts: Sequence[Chart]) -> dict[str, Any]:
    """Return the values of the interactive figures, and the code that draws them, for the templates."""
    from markupsafe import Markup

    plain = json.dumps({chart.name: chart.to_plain() for chart in charts}, allow_nan=False, separators=(",", ":"))
    safe = plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return {"charts": Markup(safe) if charts else "", "library": Markup(pack_library()) if charts else ""}


@lru_cache(maxsize=64)
def _encode(path: Path, modified: int) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def embed_image(path: Path) -> str:
    """Return a figure as a data URI."""
    return _encode(path, path.stat().st_mtime_ns)


def _build_folds(report: ReportData, panels: list[Chart], answers: list[Section]) -> list[Fold]:
    """Return the collapsed parts: sections of the report, figures of the search, and figures of layers."""
    folds: dict[str, Fold] = {}
    for part in PARTS:
        sections = [s for s in part.tabulate(report) if s not in answers] if part.fold else []
        if sections:
            folds.setdefault(part.fold, Fold(part.fold)).sections += sections
    if report.confirmed:
        rules = [text for section in answers for text in section.sentences]
        folds.setdefault(VERDICT, Fold(VERDICT)).sentences = rules
    if report.spreads:
        settings = folds.setdefault(SETTINGS, Fold(SETTINGS))
        settings.heading, settings.bullets = SPREADS, report.spreads
    if panels:
        folds.setdefault(SEARCH, Fold(SEARCH)).charts = panels
    if layers := [path for path in report.figures if path.name.startswith(PREFIX)]:
        shown = [{"uri": embed_image(p), "caption": report.captions.get(p.name, p.stem)} for p in layers]
        fold = folds.setdefault(DIAGNOSTICS, Fold(DIAGNOSTICS))
        fold.hint, fold.figures = "the layers of the models", shown
    first = [folds.pop(VERDICT)] if VERDICT in folds else []
    return first + list(folds.values())
