"""`ablate report`: compare the arms of a sweep, or of several sweeps on one page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import ablate
from ablate import tracking
from ablate.cli.arguments import Verbs, add_json, add_storage, add_verb, build_error
from ablate.cli.output import build_console, print_json
from ablate.config.lazy import LazyModule

if TYPE_CHECKING:
    from ablate.reports import index_page, terminal
    from ablate.sweeps import records, storage
else:
    terminal = LazyModule("ablate.reports.terminal")
    index_page = LazyModule("ablate.reports.index_page")
    records = LazyModule("ablate.sweeps.records")
    storage = LazyModule("ablate.sweeps.storage")

_EXAMPLE = """\
ablate report demo
  ablate report demo demo-vision
  ablate report demo --csv > runs.csv
  ablate report demo --json"""


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "compare the arms of a sweep: verdict, tables, a page with figures; one page for several sweeps"
    parser = add_verb(verbs, "report", text, _EXAMPLE, run)
    parser.add_argument("sweeps", nargs="+", metavar="SWEEP", help="name of a sweep")
    add_storage(parser)
    parser.add_argument(
        "--output", "-o", type=Path, metavar="FOLDER", help="folder for the files (default: reports/ in the store)"
    )
    add_json(parser, "print as JSON; writes no files without --output")
    parser.add_argument(
        "--csv", action="store_true", help="print a row for each run of the search and on fresh seeds; writes no files"
    )


def run(options: argparse.Namespace) -> int:
    """Write the reports of one sweep or of several, and print them."""
    titles = list(dict.fromkeys(options.sweeps))
    if options.csv:
        if options.json or options.output:
            raise build_error("--csv", "cannot be combined with --json or --output: it prints rows and writes no files")
        sweeps = [storage.read_sweep(title, options.storage) for title in titles]
        records.build_frame(sweeps).to_csv(sys.stdout, index=False)
        return 0
    several = len(titles) > 1
    write = not options.json or options.output is not None
    reports = [
        ablate.report(
            title,
            storage=options.storage,
            folder=options.output / title if options.output and several else options.output,
            write=write,
        )
        for title in titles
    ]
    index = None
    if several and write:
        index = index_page.write_index(reports, options.output or tracking.open_store() / "reports")
    if options.json:
        documents = [report.to_dict() for report in reports]
        print_json(documents if several else documents[0])
    elif several:
        terminal.render_summaries(reports, index, build_console())
    else:
        terminal.render(reports[0], build_console())
    return 0
