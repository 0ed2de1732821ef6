"""What the sizes of a file show together: how the arms differ as models grow or, where a grid of learning rates was
tested at each size, whether the best one holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.addons.scaling import figures, ladder, report, rungs, statements, tables
from ablate.addons.scaling.transfer import report as rates_report
from ablate.addons.scaling.transfer import tables as rates_tables
from ablate.addons.scaling.transfer.figure import draw_transfer
from ablate.addons.scaling.transfer.sizes import arrange_sizes
from ablate.addons.scaling.transfer.transfer import fit_transfer
from ablate.config.errors import ConfigError, Problem, SweepError
from ablate.plots.drawing import save
from ablate.plots.figure import Figure
from ablate.reports.plain_values import to_plain
from ablate.reports.section import Document, Section
from ablate.reports.storing import store_report
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.sweep import Sweep

LADDER, TRANSFER = "ladder", "transfer"


@dataclass(frozen=True)
class OverSizes:
    """What several sizes show."""

    kind: str
    """transfer or ladder."""
    name: str
    """Of its folder, and of its experiment in MLflow."""
    values: dict[str, Any]
    """All numbers, for JSON."""
    findings: list[str]
    caveats: list[str]
    tables: list[Section]
    draw: Callable[[], list[Figure]]
    """Returns the figures, the most important first."""

    def to_plain(self) -> dict[str, Any]:
        """Return its numbers and words as plain values, without a place on this machine."""
        plain: dict[str, Any] = to_plain({"kind": self.kind, **self.values, "notes": self.caveats})
        return plain


@dataclass(frozen=True)
class SizesReport:
    """What several sizes show, and the paths of its files."""

    content: OverSizes
    folder: Path
    """That of KIND.json, KIND.txt, KIND.html and the figures."""
    mlflow: dict[str, str] = field(default_factory=dict)
    """experiment_id and run_id; empty if the store did not accept the report."""
    notes: list[str] = field(default_factory=list)
    figures: list[Path] = field(default_factory=list)
    """PNG files."""

    @property
    def document(self) -> Document:
        """The report for its writers."""
        content, kind = self.content, self.content.kind
        files = [f"{kind}.html", *(path.name for path in self.figures), f"{kind}.json", f"{kind}.txt"]
        stored = [f'MLflow: run "report" of the experiment "{content.name}"'] if self.mlflow else []
        return Document(
            content.name,
            heading="What this shows",
            statements=content.findings,
            closing=True,
            figures=content.draw(),
            answers=content.tables,
            notes=self.remarks,
            places=[f"{self.folder}: {', '.join(files)}", *stored],
        )

    @property
    def remarks(self) -> list[str]:
        """What the runs do not show, and what happened to the report."""
        return [*self.content.caveats, *self.notes]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**self.content.values, "folder": str(self.folder), "mlflow": self.mlflow, "notes": self.remarks}


def compare(name: str, records: Mapping[str, SweepRecord], extrapolate: str | None = None) -> OverSizes:
    """Return what the `records` of the sizes of the file `name` (size -> record) show together; `extrapolate`: a size
    to foretell. Raises ConfigError where they can't be compared, and SweepError where too little has ended."""
    specs = {size: record.spec for size, record in records.items()}
    if _tests_grid(specs.values()):
        if extrapolate:
            text = "goes with one setting of each arm at each size, and these sweeps test a grid"
            raise ConfigError([Problem("--extrapolate", text, extrapolate)], name)
        return _compare_rates(name, records)
    return _compare_arms(name, records, extrapolate)


def find_comparison(name: str, records: Mapping[str, SweepRecord]) -> OverSizes | None:
    """Return `compare`; None where the sizes can't be compared, or too little of them has ended."""
    try:
        return compare(name, records)
    except (ConfigError, SweepError):
        return None


def note_plan(name: str, specs: Mapping[str, Sweep]) -> list[str]:
    """Return what is to be known before the sizes of the file `name` (size -> sweep) are run: why they will not be
    compared with each other, or that their attention heads differ."""
    try:
        if _tests_grid(specs.values()):
            return list(filter(None, [arrange_sizes(specs, name).describe_heads()]))
        rungs.arrange_rungs([rungs.Rung.of(size, spec) for size, spec in specs.items()], name)
    except ConfigError as error:
        return [f"The sizes will not be compared with each other: {error.problems[0]}"]
    return []


def _tests_grid(specs: Iterable[Sweep]) -> bool:
    return any(cell.point for spec in specs for cell in spec.cells.values())


def _compare_rates(name: str, records: Mapping[str, SweepRecord]) -> OverSizes:
    chain = arrange_sizes({size: record.spec for size, record in records.items()}, name)
    found = fit_transfer(chain, [records[rung.size] for rung in chain.rungs])
    return OverSizes(
        TRANSFER,
        chain.name,
        rates_report.describe_transfer(found),
        rates_tables.state_findings(found),
        rates_tables.list_caveats(found),
        [rates_tables.tabulate_optima(found), *rates_tables.tabulate_losses(found)],
        lambda: [draw_transfer(found)],
    )


def _compare_arms(name: str, records: Mapping[str, SweepRecord], extrapolate: str | None) -> OverSizes:
    known = rungs.arrange_rungs([rungs.Rung.of(size, record.spec) for size, record in records.items()], name)
    title = f"{name.removesuffix('-ladder')}-ladder"
    found = ladder.fit_ladder(title, known, [records[rung.size] for rung in known], extrapolate)
    return OverSizes(
        LADDER,
        title,
        report.describe_ladder(found),
        statements.state_findings(found),
        statements.list_caveats(found),
        tables.tabulate(found),
        lambda: [figures.draw_differences(found), figures.draw_losses(found)],
    )


def report_sizes(content: OverSizes) -> SizesReport:
    """Write the figures, page, JSON and text into `reports/NAME` of the store, and to the run "report" of the MLflow
    experiment of that name; an MLflow store that fails is noted. Raises StoreError if the folder cannot be written."""
    folder, kind = tracking.open_folder(f"reports/{content.name}"), content.kind
    written = SizesReport(content, folder, figures=[save(figure, folder)[0] for figure in content.draw()])
    return store_report(content.name, written, (f"{kind}.json", f"{kind}.txt", f"{kind}.html"))
