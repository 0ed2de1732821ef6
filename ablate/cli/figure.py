"""`ablate figure`: draw a figure of the papers, of the fresh seeds of a sweep or of other models."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import ablate
from ablate.cli.arguments import Verbs, add_storage, add_verb
from ablate.cli.measuring import MODELS, add_options, format_thirds, read_options
from ablate.cli.output import build_console, print_json
from ablate.cli.tables import build_table
from ablate.config.lazy import LazyModule
from ablate.diagnostics.thirds import THIRDS

if TYPE_CHECKING:
    from rich.console import Console

    from ablate import Drawing
    from ablate.diagnostics import figures
    from ablate.diagnostics.measures import Result
else:
    figures = LazyModule("ablate.diagnostics.figures")

_EXAMPLE = """\
ablate figure removal depth
  ablate figure lns-4 depth
  ablate figure spectral sweep:depth/pre sweep:depth/mix
  ablate figure mixln-2 hf:BERT_FOLDER hf:meta-llama/Llama-2-7b-hf --data texts.jsonl --tasks squad,mmlu"""
_FIGURE = "name of a figure, or its number in a paper, such as mixln-3; ablate list figures has them all"


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "draw a figure of the papers, of the fresh seeds of a sweep or of other models"
    parser = add_verb(verbs, "figure", text, _EXAMPLE, run)
    parser.add_argument("figure", metavar="FIGURE", help=_FIGURE)
    parser.add_argument(
        "models", nargs="+", metavar="SWEEP|MODEL", help=f"name of a sweep, all of whose arms are drawn; or {MODELS}"
    )
    add_options(parser, "mlruns/figures")
    add_storage(parser)


def run(options: argparse.Namespace) -> int:
    """Measure the models, draw the figure, and print its numbers."""
    models, settings = read_options(options, options.models)
    drawing = ablate.figure(options.figure, models, storage=options.storage, **settings)
    if options.json:
        print_json(drawing.to_dict())
    else:
        render(drawing, build_console())
    return 0


def render(drawing: Drawing, console: Console) -> None:
    """Print one line for each model and number: its mean over the first, the middle and the last layers."""
    kind, _ = figures.find_figure(drawing.name)
    for row in list({row.key: row for row in reversed(kind.rows)}.values())[::-1]:  # two may show the same numbers
        tables = drawing.rows[row.key]
        for column, label in row.list_columns(tables).items():
            lines = [
                (model, str(table.seed_count or ""), *format_thirds(_list_layers(table.mean, column)))
                for model, table in tables.items()
                if table.mean.has(column)
            ]
            console.print(f"\n{row.title}: {label}", style="bold")
            console.print(build_table(["model", "seeds", *THIRDS], lines, right=("seeds", *THIRDS)))
    console.print()
    for note in drawing.notes:
        console.print(note)
    console.print(f"\nFigure and numbers are in {drawing.folder}")


def _list_layers(table: Result, column: str) -> list[float]:
    """Return the number of each layer: of neighbouring layers, if there are pairs, and after the last update."""
    last = max(row.get("update", 0.0) for row in table.rows)
    rows = [row for row in table.rows if row.get("distance", 1) == 1 and row.get("update", 0.0) == last]
    return [row.get(column, float("nan")) for row in rows]
