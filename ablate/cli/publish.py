"""`ablate publish`: write a study as a bundle that anybody can check and run again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.cli.arguments import Verbs, add_json, add_storage, add_verb
from ablate.cli.output import build_console, print_json
from ablate.config.formatting import count_noun, join_words
from ablate.config.lazy import LazyModule

if TYPE_CHECKING:
    from ablate.ledger import publish
else:
    publish = LazyModule("ablate.ledger.publish")

_EXAMPLE = """\
ablate publish demo -o published/demo
  ablate publish sweeps/demo-ladder.yaml -o published/demo-ladder
  ablate publish my-sweep-s my-sweep-m -o published/my-sweep --json"""


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "write a study as a folder that anybody can check and run again: settings, seeds, curves, verdict, figures"
    parser = add_verb(verbs, "publish", text, _EXAMPLE, run)
    parser.add_argument(
        "sweeps", nargs="+", metavar="SWEEP", help="a sweep file with all sizes that were run, or names of sweeps"
    )
    parser.add_argument("--output", "-o", type=Path, required=True, metavar="FOLDER", help="folder of the bundle")
    add_storage(parser)
    add_json(parser, "print what was written as JSON")


def run(options: argparse.Namespace) -> int:
    """Write the bundle, and print where it is and what is not in it."""
    published = publish.publish(list(dict.fromkeys(options.sweeps)), options.output, storage=options.storage)
    bundle = published.bundle
    if options.json:
        document = {
            "folder": str(published.folder),
            "bundle": bundle.name,
            "sweeps": [sweep.name for sweep in bundle.sweeps],
            "runs": bundle.totals.runs,
            "digest": bundle.digest,
            "not_run": published.not_run,
            "unfinished": published.unfinished,
        }
        print_json(document)
        return 0
    console = build_console()
    sweeps, runs = count_noun(len(bundle.sweeps), "sweep"), count_noun(bundle.totals.runs, "run")
    console.print(f"{published.folder}: {bundle.name}, {sweeps}, {runs}.")
    if published.not_run:
        console.print(f"Not in it, as it was not run: {join_words(published.not_run)}.")
    if published.unfinished:
        console.print(f"Not finished, and published as it stands: {join_words(published.unfinished)}.")
    console.print(
        f"Read {published.folder / publish.PAGE}; your own words go into {publish.NOTES} beside it, and stand there "
        f"after the next `ablate publish`. Check it: ablate verify {published.folder}"
    )
    return 0
