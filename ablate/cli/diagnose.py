"""`ablate diagnose`: measure the layers of models, and draw figures of the papers of them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ablate
from ablate.cli import diagnose
from ablate.cli.arguments import (
    Verbs,
    add_json,
    add_plugins,
    add_storage,
    add_trust,
    add_verb,
    parse_names,
    parse_positive,
    parse_sizes,
    take_plugins,
)
from ablate.cli.output import build_console, build_table, print_json
from ablate.config.errors import AblateError
from ablate.config.formatting import count_noun, format_number, join_words
from ablate.config.lazy import postpone_imports

if TYPE_CHECKING:
    from rich.console import Console

    from ablate import Diagnosis, Drawing
    from ablate.diagnostics.coordinates.check import Coordinates
    from ablate.diagnostics.kinds import Table
    from ablate.diagnostics.measures import Result

with postpone_imports():
    from ablate.addons.evaluation import layer_removal
    from ablate.diagnostics import figures, kinds, measures
    from ablate.diagnostics.coordinates import check
    from ablate.diagnostics.measures import base
    from ablate.scheduler import donors

FIGURE = "figure:"
"""Prefix of the name of a figure in --what."""
_EXAMPLE = """\
ablate diagnose sweep:demo/pre sweep:demo/mix sweep:demo/deepnorm
  ablate diagnose RUN_ID init:RUN_ID --what gradients,variance
  ablate diagnose LLaMA-2=hf:meta-llama/Llama-2-7b-hf hf:bert-large-uncased --data texts.jsonl --tokens 256000
  ablate diagnose hf:BERT_FOLDER --what pruning --tasks squad --task-data FOLDER
  ablate diagnose timm:vit_small_patch16_224 --data image_folder root=images
  ablate diagnose sweeps/demo.yaml --what coordinates --widths 32,64,128 --depths 2,4,8
  ablate diagnose depth --what figure:lns-4
  ablate diagnose sweep:depth/pre sweep:depth/mix --what figure:spectral
  ablate diagnose RUN_ID sweep:reuse-570m/baseline --what word_similarity --pairs SimLex-999.txt"""
_WHAT = (  # a test compares them with the registry, whose import would take a second of each `ablate --help`
    "comma-separated list of angular, pruning, gradients, jacobian, spectral, block_jacobian, variance, streams "
    "(default: all); "
    "or coordinates, which trains small models by the recipe of each MODEL, for which it may also be the file of an "
    "experiment or a sweep; or figure:NAME alone, a figure of the papers by its name or number, such as mixln-3 "
    "(ablate list figures has them all), of models or the fresh seeds of a sweep, whose name is then a MODEL; or "
    "word_similarity alone, of embedding and head beside human ratings, and between each two models"
)
MODELS = (
    "a run's id, the path of a checkpoint, sweep:NAME/ARM, or hf:PATH or timm:NAME (a folder or a name on the hub); "
    "the prefix init: selects a run's initial weights; the prefix LABEL= sets its name in the figures"
)
_PAIRS = "of word_similarity: rated pairs, SimLex-999 and WordSim-353 in their original formats, or word, word, score"
_DATA = (
    "text files, a kind of data, a YAML file or settings such as tokenizer=tokenizer.json seq_len=128 "
    "(default: the validation data of the model's own experiment)"
)
_NEAR = "of word_similarity: nearest tokens of each token to compare between each two models (default: 100)"
_FOLDER = "folder for figures and numbers (default: a folder in mlruns/diagnostics, of a figure in mlruns/figures)"
_POSITIONS = "tokens that the angular distance is measured on: all, or the last of each sequence"
_OPTIONS: tuple[tuple[str, Callable[[str], Any], str, Any, str], ...] = (
    ("--widths", parse_sizes, "N,N,...", None, "of coordinates: widths of the models (default: 32,64,128,256,512)"),
    ("--depths", parse_sizes, "N,N,...", None, "of coordinates: their numbers of layers (default: 2,4,8,16,32)"),
    ("--updates", parse_positive, "N", None, "of coordinates: updates of each model (default: 10)"),
    ("--seeds", parse_positive, "N", None, "of coordinates: initialisations to average over (default: 3)"),
    ("--neighbours", parse_positive, "N", None, _NEAR),
    ("--tokens", parse_positive, "N", 256_000, "tokens or images to measure on (default: 256000)"),
    ("--output", str, "FOLDER", None, _FOLDER),
    ("--tasks", parse_names, "A,B,...", [], "also score these tasks with each layer removed in turn"),
    ("--task-data", str, "FOLDER", None, "local files of the tasks (default: the hub)"),
    ("--limit", parse_positive, "N", None, "the first N questions of each task (default: all)"),
    ("--positions", str, "all|last", "all", _POSITIONS),
    ("--batch-tokens", parse_positive, "N", 2048, "tokens in a batch (default: 2048)"),
    ("--device", str, "NAME", None, "such as cuda:1 (default: a GPU if there is one)"),
    ("--dtype", str, "float32|bfloat16", "float32", "precision of the weights"),
)
"""Name, type, metavar, default and help of each option with one value."""


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "measure the layers of models: angular distance, layer removal and more; draw figures of the papers of them"
    parser = add_verb(verbs, "diagnose", text, _EXAMPLE, run)
    parser.add_argument("models", nargs="+", metavar="MODEL", help=MODELS)
    parser.add_argument("--what", type=parse_names, default=[], metavar="A,B,...", help=_WHAT)
    parser.add_argument("--pairs", nargs="+", metavar="FILE", help=_PAIRS)
    parser.add_argument("--data", nargs="+", default=[], metavar="FILE_OR_KEY=VALUE", help=_DATA)
    for name, kind, metavar, default, text in _OPTIONS:
        parser.add_argument(name, type=kind, metavar=metavar, default=default, help=text)
    add_trust(parser, "an hf: model")
    add_plugins(parser)
    add_json(parser)
    add_storage(parser)


def run(options: argparse.Namespace) -> int:
    """Measure the models, draw the figures, and print the numbers."""
    what, console = options.what, build_console()
    models, data, pairs = take_plugins(options.words, options.models, options.data, options.pairs or [])
    figure = next((name.removeprefix(FIGURE) for name in what if name.startswith(FIGURE)), None)
    alone = next((name for name in what if name in kinds.comparisons), None)
    if len(what) > 1 and (figure or alone):
        names = " and ".join([*kinds.comparisons, f"{FIGURE}NAME"])
        raise AblateError(f"{names} are asked for alone, not as in --what {','.join(what)}.")
    if figure is None and alone is None and options.storage:
        raise AblateError(f"--storage is for the sweeps of a figure: --what {FIGURE}NAME.")
    for name, kind in kinds.comparisons.items():
        if alone != name and (given := next((option for option in kind.options if getattr(options, option)), None)):
            raise AblateError(f"--{given} is for {name.replace('_', ' ')}: --what {name}.")
    if alone is not None:
        sources = {donors.resolve_run(model, options.storage): model for model in models}
        compared = kinds.comparisons[alone]().compare(sources, {**vars(options), "data": data, "pairs": pairs})
        if options.json:
            print_json(compared.content)
        else:
            diagnose.render_tables(compared.tables, console)
        return 0
    scores = layer_removal.Benchmarks(options.tasks, options.task_data, options.limit) if options.tasks else None
    settings: dict[str, Any] = {"data": data, "benchmarks": scores} | {
        name: getattr(options, name)
        for name in ("tokens", "output", "positions", "batch_tokens", "device", "dtype", "trust_remote_code")
    }
    sizes = {name: getattr(options, name) for name in ("widths", "depths", "updates", "seeds")}
    if figure is not None:
        if given := next((name for name, value in sizes.items() if value is not None), None):
            raise AblateError(f"--{given} is for the coordinate check: include coordinates in --what.")
        found: Diagnosis | Drawing = ablate.figure(figure, models, storage=options.storage, **settings)
    else:
        found = ablate.diagnose(models, what, **settings, **sizes)
    if options.json:
        print_json(found.to_dict())
    else:
        diagnose.render(found, console)
    return 0


def render(found: Diagnosis | Drawing, console: Console) -> None:
    """Print the measurements, or the numbers of a figure."""
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
