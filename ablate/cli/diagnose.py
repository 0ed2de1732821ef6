"""`ablate diagnose`: measure the layers of models, and print means over thirds of the depth, since one line for each
layer would be too many."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import ablate
from ablate.cli.arguments import Verbs, add_verb, parse_names
from ablate.cli.measuring import MODELS, THIRDS, add_options, average_thirds, read_options
from ablate.cli.output import build_console, print_json
from ablate.cli.tables import build_table
from ablate.config.formatting import format_number
from ablate.config.lazy import LazyModule

if TYPE_CHECKING:
    from rich.console import Console

    from ablate import Diagnosis
    from ablate.diagnostics import measures
else:
    measures = LazyModule("ablate.diagnostics.measures")

_EXAMPLE = """\
ablate diagnose sweep:demo/pre sweep:demo/post sweep:demo/mix
  ablate diagnose RUN_ID init:RUN_ID --what gradients,variance
  ablate diagnose LLaMA-2=hf:meta-llama/Llama-2-7b-hf hf:bert-large-uncased --data texts.jsonl --tokens 256000
  ablate diagnose hf:BERT_FOLDER --what pruning --tasks squad --task-data FOLDER
  ablate diagnose timm:vit_small_patch16_224 --data image_folder root=images"""
_WHAT = (  # a test compares them with the registry, whose import would take a second of each `ablate --help`
    "comma-separated list of angular, pruning, gradients, jacobian, spectral, block_jacobian, variance (default: all)"
)


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "measure the layers of models: angular distance, layer removal and more"
    parser = add_verb(verbs, "diagnose", text, _EXAMPLE, run)
    parser.add_argument("models", nargs="+", metavar="MODEL", help=MODELS)
    parser.add_argument("--what", type=parse_names, default=[], metavar="A,B,...", help=_WHAT)
    add_options(parser, "mlruns/diagnostics")


def run(options: argparse.Namespace) -> int:
    """Measure the models, draw the figures, and print the numbers."""
    models, settings = read_options(options, options.models)
    diagnosis = ablate.diagnose(models, options.what, **settings)
    if options.json:
        print_json(diagnosis.to_dict())
    else:
        render(diagnosis, build_console())
    return 0


def render(diagnosis: Diagnosis, console: Console) -> None:
    """Print one line for each model and measured number: its mean over the first, the middle and the last layers."""
    for name, results in diagnosis.results.items():
        kind = measures.measurements[name]
        for column, label in kind.describe_columns(results.values()).items():
            rows = [
                (model, *average_thirds(kind.per_layer(r)[column])) for model, r in results.items() if r.has(column)
            ]
            if rows:
                console.print(f"\n{name}: {label}", style="bold")
                console.print(build_table(["model", *THIRDS], rows, right=THIRDS))
        for model, result in results.items():
            if whole := result.facts.get("whole"):
                text = ", ".join(f"{score.replace('_', ' ')} {format_number(value)}" for score, value in whole.items())
                console.print(f"{model} with all layers: {text}")
    for model, data in diagnosis.models.items():
        console.print(f"\n{model}: measured on {data}", style="dim")
    for note in diagnosis.notes:
        console.print(note)
    console.print(f"\nFigures and numbers are in {diagnosis.folder}")
