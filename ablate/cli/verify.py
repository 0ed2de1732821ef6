"""`ablate verify`: check a bundle, and train some of its runs again."""

from __future__ import annotations

import argparse
import functools
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.cli.arguments import Verbs, add_json, add_verb, parse_whole
from ablate.cli.output import build_console, print_json
from ablate.config.formatting import count_noun
from ablate.config.lazy import postpone_imports
from ablate.config.logs import print_wrapped

if TYPE_CHECKING:
    from rich.console import Console

with postpone_imports():
    from ablate.addons.bundles import reruns, verify

_MOST = 10
"""Differences that are printed."""
_EXAMPLE = """\
ablate verify published/demo
  ablate verify published/demo --runs 3
  ablate verify published/demo --runs 0      # the files and what follows from them; trains nothing
  ablate verify published/demo --only "mix" "seed 3"    # a run of Mix-LN on seed 3
  ablate verify published/demo --cheapest --eager       # quicker; numbers differ by rounding
  ablate verify published/demo --all --json"""


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "check a published bundle: its files, whether its runs show what it says, and runs of it, trained again"
    parser = add_verb(verbs, "verify", text, _EXAMPLE, run)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the bundle")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--runs", type=parse_whole, default=1, metavar="N", help="runs to train again, drawn at random (default: 1)"
    )
    which.add_argument("--all", action="store_true", help="train all runs again, and judge by them")
    parser.add_argument("--cheapest", action="store_true", help="draw from the ten cheapest runs, ties included")
    parser.add_argument(
        "--eager",
        action="store_true",
        help="do not compile: quicker for a few short runs, whose numbers then differ by rounding",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="TEXT",
        help="draw from among runs with all of these texts in their names",
    )
    parser.add_argument(
        "--trust-plugins", action="store_true", help="run the plugins of the bundle: code of its author"
    )
    add_json(parser, "print the result as JSON")


def run(options: argparse.Namespace) -> int:
    """Check the bundle; 1 if something does not hold."""
    console = build_console(stderr=options.json)
    try:
        verification = verify.verify(
            options.folder,
            runs=None if options.all else options.runs,
            cheapest=options.cheapest,
            only=options.only,
            trusts_plugins=options.trust_plugins,
            train=functools.partial(reruns.train_again, eager=options.eager),
            show=lambda text: print_wrapped(console, text),
        )
    except KeyboardInterrupt:
        print("\nStopped. What was trained is not counted; run it again.", file=sys.stderr)
        return 130
    if options.json:
        print_json(verification.to_dict())
    else:
        render(verification, console)
    return 0 if verification.holds else 1


def render(verification: verify.Verification, console: Console) -> None:
    """Print the findings and the result."""
    found = [*verification.damage, *verification.changed]
    for text in found[:_MOST]:
        print_wrapped(console, f"- {text}")
    if len(found) > _MOST:
        print_wrapped(console, f"- and {len(found) - _MOST} more, which --json lists")
    for text in verification.left_out:
        print_wrapped(console, f"Left out: {text}")
    for name, (then, now) in verification.list_surroundings().items():
        print_wrapped(console, f"Differs from the published surroundings: {name}: {then} there, {now} here")
    print_wrapped(console, f"{verification.name}: {_conclude(verification)}.")


def _conclude(verification: verify.Verification) -> str:
    """Return the result in one sentence."""
    if verification.damage:
        return f"damaged ({count_noun(len(verification.damage), 'difference')}); nothing was trained"
    if not verification.runs:
        return "undamaged, and its runs show what it says; no run was trained"
    words = Counter(rerun.word for rerun in verification.runs)
    counts = ", ".join(f"{count} {word}" for word, count in words.items())
    trained = f"{count_noun(len(verification.runs), 'run')} of {verification.of} trained again: {counts}"
    if verification.holds:
        return f"reproduced ({trained})"
    decided = words["not reproduced"] or verification.changed
    return f"{'NOT reproduced' if decided else 'neither reproduced nor refuted'} ({trained})"
