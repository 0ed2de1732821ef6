"""What the verbs share that measure the layers of models: their options, and means over thirds of the depth, since one
line for each layer would be too many."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ablate.cli.arguments import add_json, add_plugins, add_trust, parse_names, parse_positive, take_plugins
from ablate.config.formatting import format_number
from ablate.config.lazy import LazyModule
from ablate.diagnostics.thirds import average_thirds

if TYPE_CHECKING:
    from ablate.evaluation import layer_removal
else:
    layer_removal = LazyModule("ablate.evaluation.layer_removal")

MODELS = (
    "a run's id, the path of a checkpoint, sweep:NAME/ARM, or hf:PATH or timm:NAME (a folder or a name on the hub); "
    "the prefix init: selects a run's initial weights; the prefix LABEL= sets its name in the figures"
)
_DATA = (
    "text files, a kind of data, a YAML file or settings such as tokenizer=tokenizer.json seq_len=128 "
    "(default: the validation data of the model's own experiment)"
)


def add_options(parser: argparse.ArgumentParser, folder: str) -> None:
    """Add the options; `folder` is where figures and numbers are by default."""
    parser.add_argument(
        "--tokens",
        type=parse_positive,
        default=256_000,
        metavar="N",
        help=("tokens or images to measure on (default: 256000)"),
    )
    parser.add_argument("--data", nargs="+", default=[], metavar="FILE_OR_KEY=VALUE", help=_DATA)
    parser.add_argument(
        "--output", metavar="FOLDER", help=f"folder for figures and numbers (default: a folder in {folder})"
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


def read_options(options: argparse.Namespace, models: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return (the names among `models`, the settings of the measurements); plugins among the words are loaded."""
    names, data = take_plugins(options.words, models, options.data)
    scores = layer_removal.Benchmarks(options.tasks, options.task_data, options.limit) if options.tasks else None
    return names, {
        "tokens": options.tokens,
        "data": data,
        "output": options.output,
        "positions": options.positions,
        "batch_tokens": options.batch_tokens,
        "device": options.device,
        "dtype": options.dtype,
        "trust_remote_code": options.trust_remote_code,
        "benchmarks": scores,
    }


def format_thirds(values: list[float]) -> list[str]:
    """Return the means over thirds of the depth as text."""
    return [format_number(mean) for mean in average_thirds(values)]
