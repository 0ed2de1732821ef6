"""What the sizes of a file show together: how the arms differ as models grow or, where a grid of learning rates was
tested at each size, whether the best one holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.addons.scaling import figures, ladder, report, rungs, statements, tables
from ablate.addons.scaling.transfer import report as rates_report
from ablate.addons.scaling.transfer import tables as rates_tables
from ablate.addons.scaling.transfer.figure import draw_transfer
from ablate.addons.scaling.transfer.sizes import arrange_sizes
from ablate.addons.scaling.transfer.transfer import fit_transfer
from ablate.config.errors import ConfigError, Problem, StoreError, SweepError
from ablate.plots.panels import save_png
from ablate.reports.mlflow_run import find_or_start_run, publish
from ablate.reports.page import build_environment, embed_charts, embed_image
from ablate.reports.plain_values import to_plain
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LADDER, TRANSFER = "ladder", "transfer"
_CAPTIONS = {
    "ladder.png": "Loss of each arm against the parameters of the layers; dots: seeds.",
    "ladder-differences.png": "Difference to the baseline at each size with its 95 % interval; dots: seeds.",
    "transfer.png": "Loss against learning rate, a panel for each arm and a line for each size. Lines: means over the "
    "seeds that trained; dots: seeds; star and bar: the best rate with its 95 % interval; crosses: rates at which a "
    "seed failed.",
}


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
    tables: list[tables.Table]
    draw: Callable[[], dict[str, Figure]]
    """Returns file -> figure."""

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
    files: tuple[str, ...]
    mlflow: dict[str, str]
    """experiment_id and run_id; empty if the store did not accept the report."""
    notes: tuple[str, ...] = ()

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
        lambda: {"transfer.png": draw_transfer(found)},
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
        lambda: {"ladder.png": figures.draw_losses(found), "ladder-differences.png": figures.draw_differences(found)},
    )


def report_sizes(content: OverSizes, to_text: Callable[[SizesReport], str]) -> SizesReport:
    """Write the figures, page, JSON and text (what `to_text` returns) into `reports/NAME` of the store, and to the run
    "report" of the MLflow experiment of that name; an MLflow store that fails is noted. Raises StoreError if the folder
    cannot be written."""
    folder, kind = tracking.open_folder(f"reports/{content.name}"), content.kind
    drawn = content.draw()
    for file, figure in drawn.items():
        save_png(figure, folder / file)

    def write(written: SizesReport) -> list[Path]:
        texts = {
            f"{kind}.html": _render_page(written, drawn),
            f"{kind}.json": json.dumps(written.to_dict(), indent=2, allow_nan=False) + "\n",
            f"{kind}.txt": to_text(written),
        }
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
        return [folder / file for file in texts]

    files = (f"{kind}.html", *drawn, f"{kind}.json", f"{kind}.txt")
    written = SizesReport(content, folder, files, {})
    try:
        written = replace(written, mlflow=find_or_start_run(content.name))
        publish(written.mlflow["run_id"], [*(folder / file for file in drawn), *write(written)])
    except StoreError as error:
        written = replace(written, mlflow={}, notes=(f"The report is in {folder} only. {error}",))
        write(written)
    return written


def _render_page(written: SizesReport, drawn: Mapping[str, Figure]) -> str:
    """Return the report as one HTML page, the figures included."""
    content = written.content
    return (
        build_environment()
        .get_template("sizes.html.j2")
        .render(
            title=content.name,
            findings=content.findings,
            tables=content.tables,
            figures=[(embed_image(written.folder / file), _CAPTIONS[file]) for file in drawn],
            remarks=written.remarks,
            **embed_charts([]),
        )
    )
