"""`ablate report`: compare the arms of a sweep, of several sweeps, or of the sizes of a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import ablate
from ablate.cli.arguments import Verbs, add_json, add_storage, add_verb, build_error
from ablate.cli.output import build_console, print_json
from ablate.config.errors import ConfigError, SweepError
from ablate.config.lazy import postpone_imports
from ablate.config.yaml import SUFFIXES

if TYPE_CHECKING:
    from rich.console import Console

    from ablate.addons.scaling.over_sizes import SizesReport
    from ablate.reports.report import Report
    from ablate.sweeps.records import SweepRecord
    from ablate.sweeps.spec.sweep import Sweep

with postpone_imports():
    from ablate.addons.scaling import over_sizes
    from ablate.reports import terminal
    from ablate.scheduler import storage
    from ablate.sweeps import records
    from ablate.sweeps.spec import files, library

_EXAMPLE = """\
ablate report demo
  ablate report demo demo-vision
  ablate report sweeps/demo-ladder.yaml --extrapolate 9m
  ablate report demo --csv > runs.csv
  ablate report demo --json"""


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "compare the arms of a sweep: verdict, tables, a page with figures"
    parser = add_verb(verbs, "report", text, _EXAMPLE, run)
    parser.add_argument(
        "sweeps",
        nargs="+",
        metavar="SWEEP",
        help="name of a sweep, or a sweep file; of a file with sizes, all together",
    )
    add_storage(parser)
    parser.add_argument(
        "--output", "-o", type=Path, metavar="FOLDER", help="folder for the files (default: reports/ in the store)"
    )
    add_json(parser, "print as JSON; writes no files without --output")
    parser.add_argument(
        "--extrapolate",
        metavar="SIZE",
        help="of a file with sizes: foretell this one from the fitted curves (needs four sizes)",
    )
    parser.add_argument(
        "--csv", action="store_true", help="print a row for each run of the search and on fresh seeds; writes no files"
    )


def run(options: argparse.Namespace) -> int:
    """Write the reports of one sweep or of several, and print them."""
    titles = list(dict.fromkeys(options.sweeps))
    if len(titles) == 1 and (sizes := _find_sizes(titles[0], options)):
        return _report_sizes(*sizes, options)
    if options.extrapolate:
        raise build_error("--extrapolate", "needs a sweep file with sizes")
    is_file = {title: Path(title).suffix in SUFFIXES for title in titles}
    titles = [files.list_sizes(Path(title))[0] if is_file[title] else title for title in titles]
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
    if options.json:
        documents = [report.to_dict() for report in reports]
        print_json(documents if several else documents[0])
    elif several:
        print_summaries(reports, build_console())
    else:
        terminal.render(reports[0].document, build_console())
    return 0


def _find_sizes(title: str, options: argparse.Namespace) -> tuple[str, dict[str, records.SweepRecord]] | None:
    """Return the name of the sweep file that `title` names, and the records of its sizes (size -> record), the smallest
    first; None where it names no file with sizes, or a sweep of the storage does."""
    known = storage.list_sweeps(storage.storage_url(options.storage))
    if title.partition("@")[0] in known:
        return None
    try:
        file, part = library.find_sweep_file(title)
    except ConfigError:
        return None
    if part or not (loaded := files.list_sizes(file))[1]:
        return None
    name, sizes = loaded
    if not (begun := [sweep for sweep in sizes if sweep in known]):
        raise SweepError(f"No size of {file} has begun: run ablate sweep {title}.")
    return name, {sizes[sweep]: storage.read_sweep(sweep, options.storage) for sweep in begun}


def _report_sizes(name: str, sizes: dict[str, records.SweepRecord], options: argparse.Namespace) -> int:
    """Write and print the report on the sizes (size -> record) of the file `name`."""
    if options.csv:
        records.build_frame(list(sizes.values())).to_csv(sys.stdout, index=False)
        return 0
    if options.output:
        raise build_error("--output", "goes with sweeps: the report on the sizes of a file is in reports/ of the store")
    report = report_sizes(name, sizes, options.extrapolate)
    if options.json:
        print_json(report.to_dict())
    else:
        terminal.render(report.document, build_console())
    return 0


def print_summaries(reports: Sequence[Report], console: Console) -> None:
    """Print the verdict of each of several sweeps in one line, and the paths of their pages."""
    for report in reports:
        console.print(f"\n{report.record.title}: {report.record.spec.objective.metric}", style="bold")
        if report.scale:
            console.print(report.scale, style="bold yellow")
        console.print(report.summary, soft_wrap=False)
        console.print(f"{terminal.shorten_path(report.folder)}/report.html")


LACKING = "This installation lacks ablate.addons, which compares the sizes of a file with each other."


def report_sizes(name: str, sizes: Mapping[str, SweepRecord], extrapolate: str | None = None) -> SizesReport:
    """Return the report on the `sizes` (size -> record) of the file `name`, which is written too. Raises AblateError
    where they can't be compared."""
    if find_spec("ablate.addons") is None:
        raise SweepError(LACKING)
    return over_sizes.report_sizes(over_sizes.compare(name, sizes, extrapolate))


def note_plan(name: str, specs: Mapping[str, Sweep]) -> list[str]:
    """Return remarks on the sizes (size -> sweep) of the file `name` before they are run."""
    return [LACKING] if find_spec("ablate.addons") is None else over_sizes.note_plan(name, specs)
