"""What `ablate sweep` and `ablate report` show of the sizes of a file together, where ablate.addons is installed."""

from __future__ import annotations

import io
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ablate.cli.tables import build_table
from ablate.config.errors import SweepError
from ablate.config.lazy import LazyModule

if TYPE_CHECKING:
    from rich.console import Console

    from ablate.addons.scaling import over_sizes
    from ablate.addons.scaling.over_sizes import SizesReport
    from ablate.sweeps.records import SweepRecord
    from ablate.sweeps.spec.sweep import Sweep
else:
    over_sizes = LazyModule("ablate.addons.scaling.over_sizes")

LACKING = "This installation lacks ablate.addons, which compares the sizes of a file with each other."


def report_sizes(name: str, records: Mapping[str, SweepRecord], extrapolate: str | None = None) -> SizesReport:
    """Return the report on the sizes (size -> record) of the file `name`, which is written too. Raises AblateError
    where they can't be compared."""
    if find_spec("ablate.addons") is None:
        raise SweepError(LACKING)
    return over_sizes.report_sizes(over_sizes.compare(name, records, extrapolate), to_text)


def note_plan(name: str, specs: Mapping[str, Sweep]) -> list[str]:
    """Return what is to be known before the sizes (size -> sweep) of the file `name` are run."""
    return [LACKING] if find_spec("ablate.addons") is None else over_sizes.note_plan(name, specs)


def render(report: SizesReport, console: Console) -> None:
    """Print the tables, the sentences below them, and where the files are."""
    content = report.content
    console.print(f"\n{content.name}", style="bold", markup=False)
    for table in content.tables:
        console.print(f"\n{table.title}", markup=False)
        console.print(build_table(table.header, table.rows, right=table.header[1:]))
    console.print("\nWhat this shows", style="bold")
    for sentence in (*content.findings, *(f"Note: {remark}" for remark in report.remarks)):
        console.print(sentence, markup=False, soft_wrap=False)
    console.print(f"\n{report.folder}: {', '.join(report.files)}", markup=False, soft_wrap=True)
    if report.mlflow:
        console.print(f'MLflow: run "report" of the experiment "{content.name}"', markup=False)


def to_text(report: SizesReport) -> str:
    """Return what `render` prints, without colours, 120 characters wide."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=120, color_system=None, force_terminal=False)
    with console.capture() as capture:
        render(report, console)
    return capture.get()
