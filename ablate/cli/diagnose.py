"""`ablate diagnose`: measure the layers of models, and draw figures of the papers of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ablate
from ablate.cli import diagnosed
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
from ablate.cli.output import build_console, print_json
from ablate.config.errors import AblateError
from ablate.config.lazy import postpone_imports

if TYPE_CHECKING:
    from ablate import Diagnosis, Drawing

with postpone_imports():
    from ablate.addons.evaluation import layer_removal
    from ablate.diagnostics import kinds
    from ablate.scheduler import donors

FIGURE = "figure:"
"""Prefix of the name of a figure in --what."""
_EXAMPLE = """\
ablate diagnose sweep:demo/pre sweep:demo/post sweep:demo/mix
  ablate diagnose RUN_ID init:RUN_ID --what gradients,variance
  ablate diagnose LLaMA-2=hf:meta-llama/Llama-2-7b-hf hf:bert-large-uncased --data texts.jsonl --tokens 256000
  ablate diagnose hf:BERT_FOLDER --what pruning --tasks squad --task-data FOLDER
  ablate diagnose timm:vit_small_patch16_224 --data image_folder root=images
  ablate diagnose sweeps/demo.yaml --what coordinates --widths 32,64,128 --depths 2,4,8
  ablate diagnose depth --what figure:lns-4
  ablate diagnose sweep:depth/pre sweep:depth/mix --what figure:spectral
  ablate diagnose RUN_ID sweep:reuse-570m/baseline --what word_similarity --pairs SimLex-999.txt"""
_WHAT = (  # a test compares them with the registry, whose import would take a second of each `ablate --help`
    "comma-separated list of angular, pruning, gradients, jacobian, spectral, block_jacobian, variance (default: all); "
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
            diagnosed.render_tables(compared.tables, console)
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
        diagnosed.render(found, console)
    return 0
