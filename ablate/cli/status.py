"""`ablate status`: the progress of the sweeps."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

from ablate.cli.arguments import Verbs, add_json, add_storage, add_verb, build_error
from ablate.cli.output import build_console, build_table, print_json
from ablate.config.formatting import format_bytes, format_number, format_setting
from ablate.config.lazy import postpone_imports

if TYPE_CHECKING:
    from rich.console import Console

with postpone_imports():
    from ablate.experiment import metrics
    from ablate.scheduler import status as statuses
    from ablate.scheduler import storage
    from ablate.sweeps import runs


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = (
        "print the verdict so far, the number of trials done, running, pruned, diverged and failed, and the best "
        "trial of each search"
    )
    parser = add_verb(verbs, "status", text, "ablate status demo\n  ablate status demo --follow", run)
    parser.add_argument("sweep", nargs="?", metavar="SWEEP", help="name of a sweep (default: all)")
    parser.add_argument("--follow", action="store_true", help="show what its workers do, until it is done or Ctrl-C")
    add_storage(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the state of one sweep or of all, after following one if that is asked for."""
    name = options.sweep
    if options.follow:
        if name is None:
            raise build_error("--follow", "needs the name of a sweep: ablate status SWEEP --follow")
        url = storage.storage_url(options.storage)
        record = storage.read_sweep(name, url)
        name = record.full_name  # a later generation may begin meanwhile
        with contextlib.suppress(KeyboardInterrupt):
            statuses.follow_sweep(record, url, build_console(stderr=options.json))
    rows = statuses.read_statuses(name, options.storage)
    if options.json:
        print_json(rows)
    else:
        render(rows, build_console())
    return 0


def render(rows: list[dict[str, Any]], console: Console) -> None:
    """Print the verdict on each sweep, the rows as a table, and the reasons for failed trials; if there is no sweep,
    print how to start one."""
    if not rows:
        console.print("No sweep has been started yet. Start one with: ablate sweep FILE.yaml")
        return
    for title, verdict in {row["sweep"]: row["verdict"] for row in rows}.items():
        console.print(f"{title}: {verdict}")
    for title, deleted in {row["sweep"]: row["deleted"] for row in rows if row["deleted"]}.items():
        console.print(f"{title}: {deleted}", markup=False)
    lines = []
    for row in rows:
        done, target = sum(row[status] for status in runs.FINISHED), row["target"]
        if row["at_grid"]:  # where there is no search
            done, target = row["confirmed"], row["confirm_target"]
        counts = [", ".join(f"{row[status]} {status}" for status in runs.STATUSES if row[status])]
        if row["selection_target"]:
            counts.append(f"{row['selected']}/{row['selection_target']} selection runs")
        if row["confirm_target"]:
            failed = f", {row['confirmed_failed']} of them diverged or stuck" if row["confirmed_failed"] else ""
            counts.append(f"{row['confirmed']}/{row['confirm_target']} fresh seeds{failed}")
        if row["checkpoint_bytes"]:
            counts.append(f"checkpoints {format_bytes(row['checkpoint_bytes'])}")
        name = metrics.shorten_metric(row["metric"])
        best = "" if row["best"] is None else f"{name} {format_number(row['best'])}"
        at = ", ".join(f"{path.rpartition('.')[2]}={format_setting(value)}" for path, value in row["params"].items())
        lines.append([row["sweep"], row["arm"], f"{done}/{target}", "; ".join(filter(None, counts)), best, at])
    header = ["sweep", "arm", "finished", "trials", "best of the search (optimistic)", "at"]
    if all(row["at_grid"] for row in rows):  # nothing is searched
        header, lines = header[:4], [line[:4] for line in lines]
    console.print(build_table(header, lines, right=["finished"]))
    for row in rows:
        for failure in row["failures"]:
            console.print(f"{row['sweep']}, {row['arm']}: failed {failure}", markup=False)
