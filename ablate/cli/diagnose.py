"""`ablate diagnose`: measure the layers of models, and draw figures of the papers of them."""

from __future__ import annotations

import argparse
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
from ablate.config.lazy import LazyModule

if TYPE_CHECKING:
    from ablate import Diagnosis, Drawing
    from ablate.addons.evaluation import layer_removal
    from ablate.diagnostics import kinds
    from ablate.sweeps import donors
else:
    donors = LazyModule("ablate.sweeps.donors")
    layer_removal = LazyModule("ablate.addons.evaluation.layer_removal")
    kinds = LazyModule("ablate.diagnostics.kinds")

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
    text = "measure the layers of models: angular distance, layer removal and more; draw figures of the papers of them"
    parser = add_verb(verbs, "diagnose", text, _EXAMPLE, run)
    parser.add_argument("models", nargs="+", metavar="MODEL", help=MODELS)
    parser.add_argument("--what", type=parse_names, default=[], metavar="A,B,...", help=_WHAT)
    for name, text in _SIZES.items():
        parser.add_argument(name, type=parse_sizes, metavar="N,N,...", help=f"of coordinates: {text}")
    for name, text in _COUNTS.items():
        parser.add_argument(name, type=parse_positive, metavar="N", help=f"of coordinates: {text}")
    parser.add_argument("--pairs", nargs="+", metavar="FILE", help=_PAIRS)
    parser.add_argument(
        "--neighbours",
        type=parse_positive,
        metavar="N",
        help="of word_similarity: nearest tokens of each token to compare between each two models (default: 100)",
    )
    parser.add_argument(
        "--tokens",
        type=parse_positive,
        default=256_000,
        metavar="N",
        help=("tokens or images to measure on (default: 256000)"),
    )
    parser.add_argument("--data", nargs="+", default=[], metavar="FILE_OR_KEY=VALUE", help=_DATA)
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        help="folder for figures and numbers (default: a folder in mlruns/diagnostics, of a figure in mlruns/figures)",
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
