"""`ablate compare`: runs, sweeps and bundles side by side."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ablate.cli.arguments import Verbs, add_json, add_storage, add_verb
from ablate.cli.output import build_console, build_table, print_json
from ablate.config.lazy import postpone_imports
from ablate.config.logs import print_wrapped

if TYPE_CHECKING:
    from rich.console import Console

with postpone_imports():
    from ablate.addons.bundles import compare
    from ablate.verdict import statements

_EXAMPLE = """\
ablate compare demo demo@2
  ablate compare RUN_ID RUN_ID
  ablate compare published/demo demo --json"""


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "compare runs, sweeps and bundles: settings that differ, results in pairs of seeds"
    parser = add_verb(verbs, "compare", text, _EXAMPLE, run)
    parser.add_argument("names", nargs="+", metavar="NAME", help="id of a run, name of a sweep, or folder of a bundle")
    parser.add_argument(
        "--trust-plugins", action="store_true", help="run the plugins of bundles: code of their authors"
    )
    add_storage(parser)
    add_json(parser, "print as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the comparison."""
    comparison = compare.compare(options.names, storage=options.storage, trusts_plugins=options.trust_plugins)
    if options.json:
        print_json(comparison.to_dict())
    else:
        render(comparison, build_console())
    return 0


def render(comparison: compare.Comparison, console: Console) -> None:
    """Print the tables, and their limits."""
    labels = [side.label for side in comparison.sides]
    if comparison.settings:
        console.print("Settings that differ", style="bold")
        rows = [[path, *(values[label] for label in labels)] for path, values in comparison.settings.items()]
        console.print(build_table(["setting", *labels], rows))
    else:
        console.print("No setting differs.", style="bold")
    console.print(f"\n{comparison.sides[0].metric}, mean of the seeds that trained ± 95 %", style="bold")
    rows = [[arm, *(_describe(comparison, side, arm) for side in comparison.sides)] for arm in comparison.arms]
    console.print(build_table(["arm", *labels], rows))
    if comparison.pairs:
        console.print("\nIn pairs of seeds; one error of 5 % for all", style="bold")
        header = ["arm", "in", "minus", "seeds", "difference", "failed", "failed there"]
        console.print(build_table(header, [_describe_pair(pair) for pair in comparison.pairs]))
    for note in comparison.notes:
        print_wrapped(console, f"Note: {note}")


def _describe(comparison: compare.Comparison, side: compare.Side, arm: str) -> str:
    if arm not in side.arms:
        return "-"
    mean, failed, seeds = comparison.summarise(side, arm)
    if not seeds:
        return "no seed ended"
    failures = f", {failed} failed" if failed else ""
    return f"{statements.format_estimate(mean) if mean else 'none trained'} (n = {seeds - failed}{failures})"


def _describe_pair(pair: compare.Pair) -> list[str]:
    difference = statements.format_estimate(pair.difference, sign=True) if pair.difference else "none trained in both"
    return [
        pair.arm,
        pair.side,
        pair.reference,
        str(pair.seeds),
        difference,
        str(pair.failed),
        str(pair.reference_failed),
    ]
