"""`ablate wordsim`: compare word similarity in embedding and head with human similarity ratings."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ablate.cli.arguments import Verbs, add_json, add_plugins, add_verb, parse_positive, take_plugins
from ablate.cli.output import build_console, print_json
from ablate.cli.tables import build_table
from ablate.config.formatting import format_number
from ablate.config.lazy import LazyModule

if TYPE_CHECKING:
    from rich.console import Console

    from ablate.diagnostics import wordsim
    from ablate.sweeps import donors
else:
    donors = LazyModule("ablate.sweeps.donors")
    wordsim = LazyModule("ablate.diagnostics.wordsim")

_EXAMPLE = "ablate wordsim RUN_ID sweep:reuse-570m/baseline --pairs SimLex-999.txt wordsim_similarity_goldstandard.txt"
_PAIRS = "word pairs with scores: SimLex-999 and WordSim-353 in their original formats, or word, word, score"
_NEIGHBOURS = "number of nearest tokens of each token to compare between each two models (default: 100)"


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "compare word similarity in embedding and head with human similarity ratings"
    parser = add_verb(verbs, "wordsim", text, _EXAMPLE, run)
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="CHECKPOINT_OR_RUN",
        help=("a run's id, checkpoint or sweep:NAME/ARM, as for export; of several each two are compared"),
    )
    parser.add_argument("--pairs", nargs="+", required=True, metavar="FILE", help=_PAIRS)
    parser.add_argument("--neighbours", type=parse_positive, default=100, metavar="N", help=_NEIGHBOURS)
    add_json(parser)
    add_plugins(parser)


def run(options: argparse.Namespace) -> int:
    """Print the correlations of each model, and the share of nearest tokens that each two models have in common."""
    sources, pairs = take_plugins(options.words, options.sources, options.pairs)
    names = {donors.resolve_run(source): source for source in sources}
    similarities, overlaps = wordsim.wordsim(list(names), pairs, options.neighbours)
    if options.json:
        print_json(wordsim.to_dict(similarities, overlaps))
    else:
        render(similarities, overlaps, names, build_console())
    return 0


def render(
    similarities: Sequence[wordsim.Similarity],
    overlaps: Sequence[wordsim.Overlap],
    names: Mapping[str, str],
    console: Console,
) -> None:
    """Print one row for each model and layer; `names` are the models as written on the command line."""
    rows = [
        [names[s.model], s.layer, s.pairs, format_number(s.correlation), str(s.used), str(s.dropped)]
        for s in similarities
    ]
    header, numbers = ["model", "layer", "pairs", "Spearman", "used", "dropped"], {"Spearman", "used", "dropped"}
    console.print(build_table(header, rows, numbers))
    console.print("dropped: pairs with a word that is not one token of the model's tokenizer")
    if overlaps:
        shared = ["-" if o.shared is None else f"{100 * o.shared:.1f} %" for o in overlaps]
        pairs = [[*map(names.__getitem__, o.models), o.layer, cell] for o, cell in zip(overlaps, shared, strict=True)]
        neighbours = overlaps[0].neighbours
        console.print(build_table(["model", "and", "layer", f"of {neighbours} neighbours shared"], pairs))
        if "-" in shared:
            console.print(f"-: the tokenizers differ, or the vocabulary has no more than {neighbours} tokens")
