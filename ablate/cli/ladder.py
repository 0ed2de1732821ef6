"""`ablate ladder`: compare the arms of a sweep at several sizes, and show how their difference and their failures
change."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.cli.arguments import Verbs, parse_positive
from ablate.cli.output import build_console, print_json
from ablate.cli.several_sizes import add_sizes_parser, capture_text, plan_sizes, render_report, run_sizes
from ablate.config.lazy import LazyModule
from ablate.config.yaml import parse_overrides

if TYPE_CHECKING:
    from rich.console import Console

    from ablate.addons.scaling import ladder, report, rungs, statements, tables
    from ablate.sweeps.spec import library
else:
    ladder = LazyModule("ablate.addons.scaling.ladder")
    report = LazyModule("ablate.addons.scaling.report")
    rungs = LazyModule("ablate.addons.scaling.rungs")
    statements = LazyModule("ablate.addons.scaling.statements")
    tables = LazyModule("ablate.addons.scaling.tables")
    library = LazyModule("ablate.sweeps.spec.library")

_EXAMPLE = """\
ablate ladder sweeps/demo-ladder.yaml --extrapolate 9m --workers 2
  ablate ladder sweeps/mixln-table1.yaml --sizes 9m,20m,35m,60m --tokens-per-parameter 20 --extrapolate 1b"""
_SIZES = "sizes of the file or of named models, such as 9m,20m,35m (default: all sizes of the file)"
_PER_PARAMETER = "tokens for each weight of the layers (default: as in the file)"


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "compare the arms of a sweep at several sizes, and show how their difference and their failures change"
    parser = add_sizes_parser(verbs, "ladder", text, _EXAMPLE, run, _SIZES)
    parser.add_argument("--tokens-per-parameter", type=parse_positive, metavar="N", help=_PER_PARAMETER)
    parser.add_argument(
        "--extrapolate", metavar="SIZE", help=("predict this size from the fitted curves (needs four sizes)")
    )


def run(options: argparse.Namespace) -> int:
    """Run or continue the sweep of each size, and print the ladder."""
    overrides = parse_overrides(options.words)
    options.file, part = library.find_sweep_file(options.file)
    sizes = options.sizes or ([part] if part else [])
    known = rungs.build_rungs(options.file, sizes, overrides, options.tokens_per_parameter)
    if options.extrapolate:
        rungs.count_parameters(options.extrapolate, known)  # a mistake is told before anything is trained
    if options.dry_run:
        return plan_sizes(known, options)
    records = run_sizes([(rung, f"{rung.parameters:,} parameters in the layers") for rung in known], options)
    if records is None:
        return 130
    name = f"{Path(options.file).stem.removesuffix('-ladder')}-ladder"
    content = report.report_ladder(ladder.fit_ladder(name, known, records, options.extrapolate), to_text)
    if options.json:
        print_json(content.to_dict())
    else:
        render(content, build_console())
    return 1 if any(record.count_failed() for record in records) else 0


def render(content: report.LadderReport, console: Console) -> None:
    """Print the tables, the sentences below them, and where the files are."""
    shown = content.ladder
    sentences = [*statements.state_findings(shown), *statements.list_caveats(shown)]
    sentences += [f"Note: {note}" for note in content.notes]
    files = (report.LOSSES, report.DIFFERENCES, report.JSON, report.TEXT)
    render_report(shown.name, tables.tabulate(shown), sentences, content, files, console)


def to_text(content: report.LadderReport) -> str:
    """Return what `render` prints, without colours, 100 characters wide."""
    return capture_text(lambda console: render(content, console), 100)
