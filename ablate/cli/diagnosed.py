"""What `ablate diagnose` prints: of what is measured on layers, means over thirds of the depth, since one line for each
layer would be too many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import ablate
from ablate.cli.tables import build_table
from ablate.config.formatting import count_noun, format_number, join_words
from ablate.config.lazy import postpone_imports

if TYPE_CHECKING:
    from rich.console import Console

    from ablate import Diagnosis, Drawing
    from ablate.diagnostics.coordinates.check import Coordinates
    from ablate.diagnostics.kinds import Table
    from ablate.diagnostics.measures import Result

with postpone_imports():
    from ablate.diagnostics import figures, measures
    from ablate.diagnostics.coordinates import check
    from ablate.diagnostics.measures import base


def render(found: Diagnosis | Drawing, console: Console) -> None:
    """Print what was measured, or what a figure shows."""
    if isinstance(found, ablate.Drawing):
        _render_drawing(found, console)
    else:
        _render_diagnosis(found, console)


def _render_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print one line for each model and measured number: its mean over the first, the middle and the last layers."""
    for name, results in diagnosis.results.items():
        kind = measures.measurements[name]
        for column, label in kind.describe_columns(results.values()).items():
            rows = [
                (model, *_format_thirds(kind.per_layer(r)[column])) for model, r in results.items() if r.has(column)
            ]
            if rows:
                console.print(f"\n{name}: {label}", style="bold")
                console.print(build_table(["model", *base.THIRDS], rows, right=base.THIRDS))
        for model, result in results.items():
            if whole := result.facts.get("whole"):
                text = ", ".join(f"{score.replace('_', ' ')} {format_number(value)}" for score, value in whole.items())
                console.print(f"{model} with all layers: {text}")
    if diagnosis.coordinates:
        _render_coordinates(diagnosis.coordinates, console)
    for model, data in diagnosis.models.items():
        console.print(f"\n{model}: measured on {data}", style="dim")
    for note in diagnosis.notes:
        console.print(note)
    console.print(f"\nFigures and numbers are in {diagnosis.folder}")


def _render_coordinates(checks: Mapping[str, Coordinates], console: Console) -> None:
    """Print how much the layers of each model differ between widths and between depths, and whether that is flat."""
    rows = []
    for model, own in checks.items():
        judged = {(one.axis, one.quantity, one.group): one for one in own.judged}
        for axis, quantity in dict.fromkeys((one.axis, one.quantity) for one in own.judged):
            layers, *others = (judged.get((axis, quantity, group)) for group in check.GROUPS)
            assert layers is not None
            rest = ["-" if one is None else _format_ratio(one.ratio) for one in others]
            numbers = [_format_ratio(layers.ratio), layers.part, _format_ratio(layers.ratio_without_smallest)]
            rows.append([model, axis, quantity, *numbers, f"{layers.exponent:+.2f}", *rest])
    facts = next(iter(checks.values())).facts
    console.print("\ncoordinates: how much sizes differ, the largest root mean square over the smallest", style="bold")
    header = ("model", "along", "of", "layers", "in", "without smallest", "exponent", "sublayers", "logits")
    console.print(build_table(header, rows, right=(header[3], *header[5:])))
    for model, own in checks.items():
        words = join_words(f"{own.describe_flatness(axis)} along the {axis}" for axis in own.courses)
        console.print(f"{model} ({own.facts['parametrization']}): {words}", markup=False)
        if own.note:
            console.print(own.note, markup=False)
    console.print(
        f"Activations are those at initialisation, and change that of {count_noun(facts['updates'], 'update')}. Flat: "
        f"all layers within {check.FLAT - 1:.0%}, sublayers and logits aside."
    )


def _format_ratio(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"


def _render_drawing(drawing: Drawing, console: Console) -> None:
    """Print one line for each model and number: its mean over the first, the middle and the last layers."""
    kind, _ = figures.find_figure(drawing.name)
    for row in list({row.key: row for row in reversed(kind.rows)}.values())[::-1]:  # two may show the same numbers
        tables = drawing.rows[row.key]
        for column, label in row.list_columns(tables).items():
            lines = [
                (model, str(table.seed_count or ""), *_format_thirds(_list_layers(table.mean, column)))
                for model, table in tables.items()
                if table.mean.has(column)
            ]
            console.print(f"\n{row.title}: {label}", style="bold")
            console.print(build_table(["model", "seeds", *base.THIRDS], lines, right=("seeds", *base.THIRDS)))
    console.print()
    for note in drawing.notes:
        console.print(note)
    console.print(f"\nFigure and numbers are in {drawing.folder}")


def _list_layers(table: Result, column: str) -> list[float]:
    """Return the number of each layer: of neighbouring layers, if there are pairs, and after the last update."""
    last = max(row.get("update", 0.0) for row in table.rows)
    rows = [row for row in table.rows if row.get("distance", 1) == 1 and row.get("update", 0.0) == last]
    return [row.get(column, float("nan")) for row in rows]


def render_tables(tables: Sequence[Table], console: Console) -> None:
    """Print the tables of a comparison."""
    for table in tables:
        console.print(build_table(table.columns, table.rows, table.numbers))
        if table.note:
            console.print(table.note)


def _format_thirds(values: list[float]) -> list[str]:
    """Return the means over thirds of the depth as text."""
    return [format_number(mean) for mean in base.average_thirds(values)]
