"""`ablate ladder`: compare the arms of a sweep at several sizes, and show how their difference and their failures
change."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.cli.arguments import OVERRIDES, Verbs, add_json, add_storage, add_verb, parse_names, parse_positive
from ablate.cli.output import build_console, print_json, repeat_command
from ablate.cli.tables import build_table
from ablate.config.lazy import LazyModule
from ablate.config.yaml import parse_overrides

if TYPE_CHECKING:
    from rich.console import Console

    from ablate.scaling import ladder, report, rungs, statements, tables
    from ablate.sweeps import dry_run
    from ablate.sweeps import run as sweep_run
    from ablate.sweeps.spec import library
else:
    ladder = LazyModule("ablate.scaling.ladder")
    report = LazyModule("ablate.scaling.report")
    rungs = LazyModule("ablate.scaling.rungs")
    statements = LazyModule("ablate.scaling.statements")
    tables = LazyModule("ablate.scaling.tables")
    dry_run, sweep_run = LazyModule("ablate.sweeps.dry_run"), LazyModule("ablate.sweeps.run")
    library = LazyModule("ablate.sweeps.spec.library")

_EXAMPLE = """\
ablate ladder sweeps/demo-ladder.yaml --extrapolate 9m --workers 2
  ablate ladder sweeps/mixln-table1.yaml --sizes 9m,20m,35m,60m --tokens-per-parameter 20 --extrapolate 1b"""
_SIZES = "sizes of the file or of named models, such as 9m,20m,35m (default: all sizes of the file)"
_PER_PARAMETER = "tokens for each weight of the layers (default: as in the file)"


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "compare the arms of a sweep at several sizes, and show how their difference and their failures change"
    parser = add_verb(verbs, "ladder", text, _EXAMPLE, run)
    parser.add_argument("file", metavar="FILE.yaml", help="the sweep file, or the name of one that comes with Ablate")
    parser.add_argument("words", nargs="*", default=[], metavar="key=value", help=f"{OVERRIDES}, applied to every size")
    parser.add_argument("--sizes", type=parse_names, default=[], metavar="A,B,...", help=_SIZES)
    parser.add_argument("--tokens-per-parameter", type=parse_positive, metavar="N", help=_PER_PARAMETER)
    parser.add_argument(
        "--extrapolate", metavar="SIZE", help=("predict this size from the fitted curves (needs four sizes)")
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan of each size without running it")
    parser.add_argument("--workers", type=parse_positive, default=1, metavar="N", help="trials at a time (default: 1)")
    add_storage(parser)
    add_json(parser, "print the results as JSON")


def run(options: argparse.Namespace) -> int:
    """Run or continue the sweep of each size, and print the ladder."""
    overrides = parse_overrides(options.words)
    options.file, part = library.find_sweep_file(options.file)
    sizes = options.sizes or ([part] if part else [])
    known = rungs.build_rungs(options.file, sizes, overrides, options.tokens_per_parameter)
    if options.extrapolate:
        rungs.count_parameters(options.extrapolate, known)  # a mistake is told before anything is trained
    if options.dry_run:
        print("\n\n".join(dry_run.outline(rung.spec) for rung in known))
        return 0
    console, records = build_console(stderr=options.json), []
    for rung in known:
        console.print(f"{rung.spec.name}: {rung.parameters:,} parameters in the layers", style="bold")
        try:
            record = sweep_run.sweep(rung.spec, workers=options.workers, storage=options.storage, console=console)
        except KeyboardInterrupt:
            print(f"\nStopped. Continue with:\n  {repeat_command('ladder')}", file=sys.stderr)
            return 130
        records.append(record)
    name = f"{Path(options.file).stem.removesuffix('-ladder')}-ladder"
    content = report.report_ladder(ladder.fit_ladder(name, known, records, options.extrapolate), to_text)
    if options.json:
        print_json(content.to_dict())
    else:
        render(content, build_console())
    return 1 if any(record.count_failed() for record in records) else 0


def render(content: report.LadderReport, console: Console) -> None:
    """Print the tables, the sentences below them, and where the files are."""
    name = content.ladder.name
    console.print(f"\n{name}", style="bold", markup=False)
    for table in tables.tabulate(content.ladder):
        console.print(f"\n{table.title}", markup=False)
        console.print(build_table(table.header, table.rows, right=table.header[1:]))
    console.print("\nWhat this shows", style="bold")
    sentences = [*statements.state_findings(content.ladder), *statements.list_caveats(content.ladder)]
    for sentence in (*sentences, *(f"Note: {note}" for note in content.notes)):
        console.print(sentence, markup=False, soft_wrap=False)
    files = ", ".join((report.LOSSES, report.DIFFERENCES, report.JSON, report.TEXT))
    console.print(f"\n{content.folder}: {files}", markup=False, soft_wrap=True)
    if content.mlflow:
        console.print(f'MLflow: run "report" of the experiment "{name}"', markup=False)


def to_text(content: report.LadderReport) -> str:
    """Return what `render` prints, without colours, 100 characters wide."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100, color_system=None, force_terminal=False)
    with console.capture() as capture:
        render(content, console)
    return capture.get()
