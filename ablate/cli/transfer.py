"""`ablate transfer`: train the arms of a sweep at several sizes and learning rates, and show whether the best rate of
the smallest size holds at the largest."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ablate.cli.arguments import Verbs
from ablate.cli.output import build_console, print_json
from ablate.cli.several_sizes import add_sizes_parser, capture_text, plan_sizes, render_report, run_sizes
from ablate.config.lazy import LazyModule
from ablate.config.yaml import parse_overrides

if TYPE_CHECKING:
    from rich.console import Console

    from ablate.addons.scaling.transfer import report, sizes, tables, transfer
    from ablate.sweeps.spec import library
else:
    report = LazyModule("ablate.addons.scaling.transfer.report")
    sizes = LazyModule("ablate.addons.scaling.transfer.sizes")
    tables = LazyModule("ablate.addons.scaling.transfer.tables")
    transfer = LazyModule("ablate.addons.scaling.transfer.transfer")
    library = LazyModule("ablate.sweeps.spec.library")

_EXAMPLE = """\
ablate transfer demo-transfer --workers 2
  ablate transfer demo-transfer --sizes w32
  ablate transfer demo-transfer --sizes w32,w64 --dry-run
  ablate transfer my.yaml confirm.seeds=5 --json"""


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "show whether the best learning rate of a small model is that of a larger one"
    sizes = "sizes of the file, or one of them to tune its learning rate alone (default: all)"
    add_sizes_parser(verbs, "transfer", text, _EXAMPLE, run, sizes)


def run(options: argparse.Namespace) -> int:
    """Run or continue the sweep of each size, and print what the sizes show together."""
    options.file, _ = library.find_sweep_file(options.file)
    chain = sizes.build_chain(options.file, options.sizes, parse_overrides(options.words))
    if options.dry_run:
        return plan_sizes(chain.rungs, options, list(filter(None, [chain.describe_heads()])))
    places = (f"{chain.axis} {place:,}" for place in chain.places)
    records = run_sizes(list(zip(chain.rungs, places, strict=True)), options)
    if records is None:
        return 130
    content = report.report_transfer(transfer.fit_transfer(chain, records), to_text)
    if options.json:
        print_json(content.to_dict())
    else:
        render(content, build_console())
    return 1 if any(record.count_failed() for record in records) else 0


def render(content: report.TransferReport, console: Console) -> None:
    """Print the tables, the sentences below them, and where the files are."""
    shown = content.transfer
    sentences = [*tables.state_findings(shown), *(f"Note: {remark}" for remark in content.remarks)]
    files = (report.PAGE, report.FIGURE, report.JSON, report.TEXT)
    numbers = [tables.tabulate_optima(shown), *tables.tabulate_losses(shown)]
    render_report(shown.chain.name, numbers, sentences, content, files, console)


def to_text(content: report.TransferReport) -> str:
    """Return what `render` prints, without colours, 120 characters wide."""
    return capture_text(lambda console: render(content, console), 120)
