"""Where a report of several sizes is stored: in a folder of the store, and in MLflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from ablate.config.errors import StoreError
from ablate.plots.panels import save_png
from ablate.reports.mlflow_run import find_or_start_run, publish

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class StoredReport(Protocol):
    """A report of several sizes, which is a dataclass."""

    @property
    def folder(self) -> Path:
        """That of its files."""

    @property
    def mlflow(self) -> dict[str, str]:
        """experiment_id and run_id; empty if the store did not accept the report."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known beside the findings."""


R = TypeVar("R", bound=StoredReport)


def store_report(
    name: str, report: R, figures: Mapping[str, Figure], list_texts: Callable[[R], Mapping[str, str]]
) -> R:
    """Return `report` with its place in MLflow, after its figures and texts (file -> content) are written into its
    folder and to the run "report" of the MLflow experiment `name`; a store that fails is noted. Raises StoreError if
    the folder cannot be written."""
    pictures = [report.folder / file for file in figures]
    for picture, figure in zip(pictures, figures.values(), strict=True):
        save_png(figure, picture)

    def write(report: R) -> list[Path]:
        texts = list_texts(report)
        for file, text in texts.items():
            (report.folder / file).write_text(text, encoding="utf-8")
        return [report.folder / file for file in texts]

    try:
        report = replace(report, mlflow=find_or_start_run(name))  # type: ignore[type-var]
        publish(report.mlflow["run_id"], [*pictures, *write(report)])
    except StoreError as error:
        report = replace(report, mlflow={}, notes=(f"The report is in {report.folder} only. {error}",))  # type: ignore[type-var]
        write(report)
    return report
