"""`ablate publish`: write a study as a bundle that anybody can check and run again."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ablate.cli.arguments import COMMAND_LINE, Verbs, add_json, add_storage, add_verb
from ablate.cli.output import build_console, print_json
from ablate.config.errors import ConfigError, Problem
from ablate.config.formatting import count_noun, join_words
from ablate.config.lazy import postpone_imports

with postpone_imports():
    from ablate.addons.bundles import publish, schema

_EXAMPLE = """\
ablate publish demo -o published/demo
  ablate publish sweeps/demo-ladder.yaml -o published/demo-ladder
  ablate publish my-sweep-s my-sweep-m -o published/my-sweep --json
  ablate publish published/demo                # a bundle anew, with notes.md as it is now"""


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "write a study as a folder that anybody can check and run again: settings, seeds, curves, verdict, figures"
    parser = add_verb(verbs, "publish", text, _EXAMPLE, run)
    parser.add_argument(
        "sweeps",
        nargs="+",
        metavar="SWEEP",
        help="a sweep file with all sizes that were run, names of sweeps, or a bundle, whose page is written anew",
    )
    parser.add_argument(
        "--output", "-o", type=Path, metavar="FOLDER", help="folder of the bundle; of a bundle, by default its own"
    )
    parser.add_argument(
        "--trust-plugins", action="store_true", help="of a bundle: run its plugins, which are code of its author"
    )
    add_storage(parser)
    add_json(parser, "print what was written as JSON")


def run(options: argparse.Namespace) -> int:
    """Write the bundle, and print where it is and what is not in it."""
    published = _publish(options)
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
            "kept": published.kept,
        }
        print_json(document)
        return 0
    console = build_console()
    sweeps, runs = count_noun(len(bundle.sweeps), "sweep"), count_noun(bundle.totals.runs, "run")
    console.print(f"{published.folder}: {bundle.name}, {sweeps}, {runs}.")
    if published.kept:
        kept = join_words(published.kept)
        console.print(f"Kept from the earlier bundle there, as this storage does not have them: {kept}.")
    if published.not_run:
        console.print(f"Not in it, as it was not run: {join_words(published.not_run)}.")
    if published.unfinished:
        console.print(f"Not finished, and published as it stands: {join_words(published.unfinished)}.")
    console.print(
        f"Read {published.folder / schema.PAGE}; your own words go into {schema.NOTES} beside it, and stand there "
        f"after the next `ablate publish {published.folder}`. Check it: ablate verify {published.folder}"
    )
    return 0


def _publish(options: argparse.Namespace) -> publish.Published:
    """Publish sweeps or, given the folder of a bundle, write that anew."""
    names = list(dict.fromkeys(options.sweeps))
    if len(names) == 1 and os.path.isfile(Path(names[0]) / schema.FILE):
        return publish.publish_anew(names[0], options.output, trusts_plugins=options.trust_plugins)
    if options.output is None:
        text = f"Give the folder of the bundle: ablate publish {' '.join(names)} -o FOLDER."
        raise ConfigError([Problem("--output", text)], COMMAND_LINE)
    return publish.publish(names, options.output, storage=options.storage)
