"""What the verbs share that run a sweep at several sizes: running one after another, and printing their report."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ablate.cli.arguments import OVERRIDES, Verbs, add_json, add_storage, add_verb, parse_names, parse_positive
from ablate.cli.output import build_console, repeat_command
from ablate.cli.sweep_plans import print_plans
from ablate.cli.tables import build_table
from ablate.config.lazy import LazyModule
from ablate.config.logs import print_wrapped

if TYPE_CHECKING:
    from rich.console import Console

    from ablate.addons.scaling.rungs import Rung
    from ablate.addons.scaling.storing import StoredReport
    from ablate.addons.scaling.tables import Table
    from ablate.sweeps import dry_run, transferring
    from ablate.sweeps import run as sweep_run
    from ablate.sweeps.records import SweepRecord
    from ablate.sweeps.spec import files
    from ablate.sweeps.spec.sweep import Sweep
else:
    dry_run, transferring = LazyModule("ablate.sweeps.dry_run"), LazyModule("ablate.sweeps.transferring")
    files, sweep_run = LazyModule("ablate.sweeps.spec.files"), LazyModule("ablate.sweeps.run")


def add_sizes_parser(
    verbs: Verbs, verb: str, text: str, example: str, run: Callable[[argparse.Namespace], int], sizes: str
) -> argparse.ArgumentParser:
    """Return the parser of such a verb with the options that all have; `sizes` is the help of --sizes."""
    parser = add_verb(verbs, verb, text, example, run)
    parser.add_argument("file", metavar="FILE.yaml", help="the sweep file, or the name of one that comes with Ablate")
    parser.add_argument("words", nargs="*", default=[], metavar="key=value", help=f"{OVERRIDES}, applied to every size")
    parser.add_argument("--sizes", type=parse_names, default=[], metavar="A,B,...", help=sizes)
    parser.add_argument("--dry-run", action="store_true", help="print the plan of each size without running it")
    parser.add_argument("--workers", type=parse_positive, default=1, metavar="N", help="trials at a time (default: 1)")
    add_storage(parser)
    add_json(parser, "print the results, or with --dry-run the plans, as JSON")
    return parser


def run_sizes(rungs: Sequence[tuple[Rung, str]], options: argparse.Namespace) -> list[SweepRecord] | None:
    """Run or continue the sweep of each size after a line that describes it, and return their records; None if it was
    stopped, after the command that continues it."""
    console, records, told = build_console(stderr=options.json), [], {rung.size: size for rung, size in rungs}
    for size, spec in files.connect({rung.size: rung.spec for rung, _ in rungs}):
        console.print(f"{spec.name}: {told[size]}", style="bold", markup=False)
        try:
            record = sweep_run.sweep(spec, workers=options.workers, storage=options.storage, console=console)
        except KeyboardInterrupt:
            print(f"\nStopped. Continue with:\n  {repeat_command(options.verb)}", file=sys.stderr)
            return None
        if record.spec.is_spot_check:
            print_wrapped(console, transferring.describe_check(record))
        else:
            records.append(record)
    return records


def plan_sizes(rungs: Sequence[Rung], options: argparse.Namespace, notes: Sequence[str] = ()) -> int:
    """Print the plan of what is left to do at each size, and `notes` on all of them, and return the exit status."""
    specs = [spec for _, spec in files.connect({rung.size: rung.spec for rung in rungs})]

    def plan(spec: Sweep) -> tuple[str, str]:
        return dry_run.plan_or_outline(spec, options.workers, options.storage)

    return print_plans(specs, plan, options, notes)


def render_report(
    name: str,
    tables: Iterable[Table],
    sentences: Iterable[str],
    report: StoredReport,
    files: Iterable[str],
    console: Console,
) -> None:
    """Print the tables, the sentences below them, and where the files are."""
    console.print(f"\n{name}", style="bold", markup=False)
    for table in tables:
        console.print(f"\n{table.title}", markup=False)
        console.print(build_table(table.header, table.rows, right=table.header[1:]))
    console.print("\nWhat this shows", style="bold")
    for sentence in sentences:
        console.print(sentence, markup=False, soft_wrap=False)
    console.print(f"\n{report.folder}: {', '.join(files)}", markup=False, soft_wrap=True)
    if report.mlflow:
        console.print(f'MLflow: run "report" of the experiment "{name}"', markup=False)


def capture_text(render: Callable[[Console], None], width: int) -> str:
    """Return what `render` prints, without colours, `width` characters wide."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        render(console)
    return capture.get()
