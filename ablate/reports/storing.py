"""Storing a report: in a folder, and in the run "report" of its MLflow experiment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ablate.config.errors import StoreError
from ablate.plots.drawing import to_svg
from ablate.plots.figure import Figure
from ablate.reports import page, terminal
from ablate.reports.mlflow_run import Labels, describe, find_or_start_run, publish
from ablate.reports.section import Document


class StoredReport(Protocol):
    """A report, which is a dataclass."""

    @property
    def folder(self) -> Path:
        """The folder of its files."""

    @property
    def figures(self) -> list[Path]:
        """PNG files there; each has an SVG file of the same name beside it."""

    @property
    def mlflow(self) -> Mapping[str, Any]:
        """experiment_id and run_id, once it is stored there."""

    @property
    def notes(self) -> list[str]:
        """Warnings."""

    @property
    def document(self) -> Document:
        """The report for its writers."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""


R = TypeVar("R", bound=StoredReport)
Names = tuple[str, str, str]
"""Names of the JSON file, the text and the page."""


def store_report(title: str, report: R, names: Names, labels: Labels | None = None) -> R:
    """Return `report` with its place in MLflow, after its files are written into its folder and, with its figures and
    `labels`, to the run "report" of the experiment `title`; a store that fails is noted. Raises StoreError if the
    folder cannot be written."""
    try:
        stored: R = replace(report, mlflow={**report.mlflow, **find_or_start_run(title)})  # type: ignore[type-var]
        shown = [file.with_suffix(".svg") for file in stored.figures[:1]]  # in the description
        files = [*stored.figures, *shown, *write_report(stored, names)]
        run_id, experiment_id = stored.mlflow["run_id"], stored.mlflow["experiment_id"]
        publish(run_id, files, labels, describe(stored.document, experiment_id, run_id, names[2]), experiment_id)
    except StoreError as error:
        note = f"The report is in {report.folder} only. {error}"
        stored = replace(report, notes=[*report.notes, note])  # type: ignore[type-var]
        write_report(stored, names)
    return stored


def write_report(report: StoredReport, names: Names) -> list[Path]:
    """Write the report as JSON, as text and as a page, and return their paths."""
    files = [report.folder / name for name in names]
    files[0].write_text(json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    files[1].write_text(terminal.to_text(report.document), encoding="utf-8")
    files[2].write_text(render_page(report), encoding="utf-8")
    return files


def render_page(report: StoredReport) -> str:
    """Return the page of a report, with the figures that are written already, or else drawn."""

    def read(figure: Figure) -> str:
        file = report.folder / f"{figure.name}.svg"
        return file.read_text(encoding="utf-8") if file.with_suffix(".png") in report.figures else to_svg(figure)

    return page.render(report.document, read)
