"""`ablate diagnose`: measure the layers of models, and print means over thirds of the depth, since one line for each
layer would be too many."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

import ablate
from ablate.cli.arguments import (
    Verbs,
    add_json,
    add_plugins,
    add_trust,
    add_verb,
    parse_names,
    parse_positive,
    take_plugins,
)
from ablate.cli.output import build_console, print_json
from ablate.cli.tables import build_table
from ablate.config.formatting import format_number
from ablate.config.lazy import LazyModule

if TYPE_CHECKING:
    from rich.console import Console

    from ablate import Diagnosis
    from ablate.diagnostics import measures
    from ablate.evaluation import layer_removal
else:
    measures = LazyModule("ablate.diagnostics.measures")
    layer_removal = LazyModule("ablate.evaluation.layer_removal")

_EXAMPLE = """\
ablate diagnose sweep:demo/pre sweep:demo/post sweep:demo/mix
  ablate diagnose RUN_ID init:RUN_ID --what gradients,variance
  ablate diagnose LLaMA-2=hf:meta-llama/Llama-2-7b-hf hf:bert-large-uncased --data texts.jsonl --tokens 256000
  ablate diagnose timm:vit_small_patch16_224 --data image_folder root=images"""
_MODELS = (
    "a run's id, the path of a checkpoint, sweep:NAME/ARM, or hf:PATH or timm:NAME (a folder or a name on the hub); "
    "the prefix init: selects a run's initial weights; the prefix LABEL= sets its name in the figures"
)
_WHAT = (
    "comma-separated list of angular, pruning, gradients, jacobian, spectral, block_jacobian, variance (default: all)"
)
_DATA = (
    "text files, a kind of data, a YAML file or settings such as tokenizer=tokenizer.json seq_len=128 "
    "(default: the validation data of the model's own experiment)"
)
THIRDS = ("first third", "middle", "last third")


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "measure the layers of models: angular distance, layer removal and more"
    parser = add_verb(verbs, "diagnose", text, _EXAMPLE, run)
    parser.add_argument("models", nargs="+", metavar="MODEL", help=_MODELS)
    parser.add_argument("--what", type=parse_names, default=[], metavar="A,B,...", help=_WHAT)
    parser.add_argument(
        "--tokens",
        type=parse_positive,
        default=256_000,
        metavar="N",
        help=("tokens or images to measure on (default: 256000)"),
    )
    parser.add_argument("--data", nargs="+", default=[], metavar="FILE_OR_KEY=VALUE", help=_DATA)
    parser.add_argument(
        "--output", metavar="FOLDER", help="folder for figures and numbers (default: a folder in mlruns/diagnostics)"
    )
    parser.add_argument(
        "--tasks",
        type=parse_names,
        default=[],
        metavar="A,B,...",
        help=("also score these tasks with each layer removed in turn"),
    )
    parser.add_argument("--task-data", metavar="FOLDER", help="local files of the tasks (default: the hub)")
    parser.add_argument(
        "--limit", type=parse_positive, metavar="N", help="the first N questions of each task (default: all)"
    )
    parser.add_argument(
        "--positions",
        default="all",
        metavar="all|last",
        help=("tokens that the angular distance is measured on: all, or the last of each sequence"),
    )
    parser.add_argument(
        "--batch-tokens", type=parse_positive, default=2048, metavar="N", help="tokens in a batch (default: 2048)"
    )
    parser.add_argument("--device", metavar="NAME", help="such as cuda:1 (default: a GPU if there is one)")
    parser.add_argument("--dtype", default="float32", metavar="float32|bfloat16", help="precision of the weights")
    add_trust(parser, "an hf: model")
    add_plugins(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Measure the models, draw the figures, and print the numbers."""
    task_scores = layer_removal.Benchmarks(options.tasks, options.task_data, options.limit) if options.tasks else None
    models, data = take_plugins(options.words, options.models, options.data)
    diagnosis = ablate.diagnose(
        models,
        options.what,
        tokens=options.tokens,
        data=data,
        output=options.output,
        positions=options.positions,
        batch_tokens=options.batch_tokens,
        device=options.device,
        dtype=options.dtype,
        trust_remote_code=options.trust_remote_code,
        benchmarks=task_scores,
    )
    if options.json:
        print_json(diagnosis.to_dict())
    else:
        render(diagnosis, build_console())
    return 0


def render(diagnosis: Diagnosis, console: Console) -> None:
    """Print one line for each model and measured number: its mean over the first, the middle and the last layers."""
    for name, results in diagnosis.results.items():
        kind = measures.measurements[name]
        for column, label in kind.columns.items():
            rows = [
                (model, *_average_thirds(kind.per_layer(r)[column])) for model, r in results.items() if r.has(column)
            ]
            if rows:
                console.print(f"\n{name}: {label}", style="bold")
                console.print(build_table(["model", *THIRDS], rows, right=THIRDS))
    for model, data in diagnosis.models.items():
        console.print(f"\n{model}: measured on {data}", style="dim")
    for note in diagnosis.notes:
        console.print(note)
    console.print(f"\nFigures and numbers are in {diagnosis.folder}")


def _average_thirds(values: list[float]) -> list[str]:
    """Return the means of three parts of nearly equal length; with fewer than three layers the parts overlap."""
    n = len(values)
    cuts = [(0, math.ceil(n / 3)), (n // 3, math.ceil(2 * n / 3)), (n - math.ceil(n / 3), n)]
    return [format_number(math.fsum(values[low:high]) / (high - low)) for low, high in cuts]
