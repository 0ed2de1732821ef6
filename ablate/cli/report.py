"""`ablate report`: the arms of a sweep compared."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import ablate
from ablate.cli.arguments import Verbs, add_json, add_storage, add_verb
from ablate.cli.lazy import LazyModule
from ablate.cli.output import build_console, print_json

if TYPE_CHECKING:
    from ablate.reports import terminal
else:
    terminal = LazyModule("ablate.reports.terminal")


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "compare the arms of a sweep: table, figures, where it is in MLflow"
    parser = add_verb(verbs, "report", text, "ablate report demo", run)
    parser.add_argument("sweep", metavar="SWEEP", help="name of a sweep")
    add_storage(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Write the report of a sweep, and print it."""
    content = ablate.report(options.sweep, storage=options.storage)
    if options.json:
        print_json(content.to_dict())
    else:
        terminal.render(content, build_console())
    return 0
