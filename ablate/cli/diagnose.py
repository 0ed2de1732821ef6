"""What was measured, on a terminal: the layers by thirds of the depth, since a line for each would be too many."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ablate.cli.tables import table
from ablate.config.formatting import format_number
from ablate.diagnostics.measures import measurements
from ablate.diagnostics.run import Diagnosis

if TYPE_CHECKING:
    from rich.console import Console

THIRDS = ("first third", "middle", "last third")


def render(found: Diagnosis, console: Console) -> None:
    """One line for each model and measured number: its mean over the first, the middle and the last layers."""
    for name, results in found.results.items():
        kind = measurements[name]
        for column, label in kind.columns.items():
            rows = [(model, *_thirds(kind.per_layer(r)[column])) for model, r in results.items() if r.has(column)]
            if rows:
                console.print(f"\n{name}: {label}", style="bold")
                console.print(table(["model", *THIRDS], rows, right=THIRDS))
    for model, data in found.models.items():
        console.print(f"\n{model}: measured on {data}", style="dim")
    for note in found.notes:
        console.print(note)
    console.print(f"\nFigures and numbers are in {found.folder}")


def _thirds(values: list[float]) -> list[str]:
    """Means of three parts that are as equal as can be; of fewer than three layers the parts overlap."""
    n = len(values)
    cuts = [(0, math.ceil(n / 3)), (n // 3, math.ceil(2 * n / 3)), (n - math.ceil(n / 3), n)]
    return [format_number(math.fsum(values[low:high]) / (high - low)) for low, high in cuts]
