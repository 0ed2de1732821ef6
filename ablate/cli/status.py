"""The status of sweeps on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from ablate.cli.tables import table
from ablate.config.formatting import format_bytes, format_number, format_setting
from ablate.verdict.outcomes import FINISHED, STATUSES


def render(rows: list[dict[str, Any]], console: Console) -> None:
    """Prints the rows as a table, below it why trials failed, or how to start a sweep where there is none."""
    if not rows:
        console.print("No sweep has been started yet. Start one with: ablate sweep FILE.yaml")
        return
    lines = []
    for row in rows:
        done = sum(row[status] for status in FINISHED)
        counts = ", ".join(f"{row[status]} {status}" for status in STATUSES if row[status])
        if row["confirm_target"]:
            counts += f"; {row['confirmed']}/{row['confirm_target']} seeds confirmed"
        if row["checkpoint_bytes"]:
            counts += f"; checkpoints {format_bytes(row['checkpoint_bytes'])}"
        best = "" if row["best"] is None else f"{row['metric']} {format_number(row['best'])}"
        at = ", ".join(f"{path.rpartition('.')[2]}={format_setting(value)}" for path, value in row["params"].items())
        lines.append([row["sweep"], row["arm"], f"{done}/{row['target']}", counts, best, at])
    console.print(table(["sweep", "arm", "finished", "trials", "best so far", "at"], lines, right=["finished"]))
    for row in rows:
        for failure in row["failures"]:
            console.print(f"{row['sweep']}, {row['arm']}: failed {failure}", markup=False)
