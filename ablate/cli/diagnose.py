"""`ablate diagnose`: measure the layers of models, and print means over thirds of the depth, since one line for each
layer would be too many."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import ablate
from ablate.cli.arguments import Verbs, add_verb, parse_names, parse_positive, parse_sizes
from ablate.cli.measuring import MODELS, add_options, format_thirds, read_options
from ablate.cli.output import build_console, print_json
from ablate.cli.tables import build_table
from ablate.config.formatting import count_noun, format_number, join_words
from ablate.config.lazy import LazyModule
from ablate.diagnostics.thirds import THIRDS

if TYPE_CHECKING:
    from rich.console import Console

    from ablate import Diagnosis
    from ablate.diagnostics import measures
    from ablate.diagnostics.coordinates import flatness
    from ablate.diagnostics.coordinates.check import Coordinates
else:
    measures = LazyModule("ablate.diagnostics.measures")
    flatness = LazyModule("ablate.diagnostics.coordinates.flatness")

_EXAMPLE = """\
ablate diagnose sweep:demo/pre sweep:demo/post sweep:demo/mix
  ablate diagnose RUN_ID init:RUN_ID --what gradients,variance
  ablate diagnose LLaMA-2=hf:meta-llama/Llama-2-7b-hf hf:bert-large-uncased --data texts.jsonl --tokens 256000
  ablate diagnose hf:BERT_FOLDER --what pruning --tasks squad --task-data FOLDER
  ablate diagnose timm:vit_small_patch16_224 --data image_folder root=images
  ablate diagnose sweeps/demo.yaml --what coordinates --widths 32,64,128 --depths 2,4,8"""
_WHAT = (  # a test compares them with the registry, whose import would take a second of each `ablate --help`
    "comma-separated list of angular, pruning, gradients, jacobian, spectral, block_jacobian, variance (default: all); "
    "or coordinates, which trains small models by the recipe of each MODEL, for which it may also be the file of an "
    "experiment or a sweep"
)
_SIZES = {
    "--widths": "widths of the models (default: 32,64,128,256,512)",
    "--depths": "their numbers of layers (default: 2,4,8,16,32)",
}
_COUNTS = {
    "--updates": "updates of each model (default: 10)",
    "--seeds": "initialisations to average over (default: 3)",
}


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "measure the layers of models: angular distance, layer removal and more"
    parser = add_verb(verbs, "diagnose", text, _EXAMPLE, run)
    parser.add_argument("models", nargs="+", metavar="MODEL", help=MODELS)
    parser.add_argument("--what", type=parse_names, default=[], metavar="A,B,...", help=_WHAT)
    for name, text in _SIZES.items():
        parser.add_argument(name, type=parse_sizes, metavar="N,N,...", help=f"of coordinates: {text}")
    for name, text in _COUNTS.items():
        parser.add_argument(name, type=parse_positive, metavar="N", help=f"of coordinates: {text}")
    add_options(parser, "mlruns/diagnostics")


def run(options: argparse.Namespace) -> int:
    """Measure the models, draw the figures, and print the numbers."""
    models, settings = read_options(options, options.models)
    sizes = {name: getattr(options, name) for name in ("widths", "depths", "updates", "seeds")}
    diagnosis = ablate.diagnose(models, options.what, **settings, **sizes)
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
            rows = [(model, *format_thirds(kind.per_layer(r)[column])) for model, r in results.items() if r.has(column)]
            if rows:
                console.print(f"\n{name}: {label}", style="bold")
                console.print(build_table(["model", *THIRDS], rows, right=THIRDS))
        for model, result in results.items():
            if whole := result.facts.get("whole"):
                text = ", ".join(f"{score.replace('_', ' ')} {format_number(value)}" for score, value in whole.items())
                console.print(f"{model} with all layers: {text}")
    if diagnosis.coordinates:
        print_coordinates(diagnosis.coordinates, console)
    for model, data in diagnosis.models.items():
        console.print(f"\n{model}: measured on {data}", style="dim")
    for note in diagnosis.notes:
        console.print(note)
    console.print(f"\nFigures and numbers are in {diagnosis.folder}")


def print_coordinates(checks: Mapping[str, Coordinates], console: Console) -> None:
    """Print how much the layers of each model differ between widths and between depths, and whether that is flat."""
    rows = []
    for model, own in checks.items():
        judged = {(one.axis, one.quantity, one.group): one for one in own.judged}
        for axis, quantity in dict.fromkeys((one.axis, one.quantity) for one in own.judged):
            layers, *others = (judged.get((axis, quantity, group)) for group in flatness.GROUPS)
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
        f"all layers within {flatness.FLAT - 1:.0%}, sublayers and logits aside."
    )


def _format_ratio(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"
