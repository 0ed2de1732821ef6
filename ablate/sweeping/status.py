"""How far the sweeps are: trials by status, and the best so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ablate.sweeping.study import STATUSES, generations, open_storage, read_sweep, storage_url, title_of
from ablate.words import setting

if TYPE_CHECKING:
    from rich.table import Table


def statuses(title: str | None = None, storage: str | None = None) -> list[dict[str, Any]]:
    """One row per arm of the sweep `title`, or of every sweep's latest generation. Raises SweepError for an unknown
    one."""
    url = storage_url(storage)
    titles = [title] if title else [title_of(n, g[-1]) for n, g in generations(open_storage(url)).items()]
    rows = []
    for name in titles:
        sweep = read_sweep(name, url)
        for arm in sweep.trials:
            best = sweep.best(arm)
            rows.append(
                {
                    "sweep": sweep.title,
                    "arm": arm,
                    "target": sweep.target(arm),
                    **sweep.counts(arm),
                    "metric": sweep.spec.objective.metric,
                    "best": best.value if best else None,
                    "params": best.params if best else {},
                    "failures": [f"#{t.number}: {t.reason}" for t in sweep.trials[arm] if t.status == "failed"],
                }
            )
    return rows


def status_table(rows: list[dict[str, Any]]) -> Table:
    """The rows as a table; statuses that no trial has are left out."""
    from rich.table import Table

    shown = [status for status in STATUSES if status == "completed" or any(row[status] for row in rows)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("sweep", "arm", "target", *shown, "best so far", "at"):
        table.add_column(column, justify="right" if column in (*shown, "target") else "left", overflow="fold")
    for row in rows:
        best = "" if row["best"] is None else f"{row['metric']} {row['best']:.4f}"
        at = ", ".join(f"{k.rpartition('.')[2]}={setting(v)}" for k, v in row["params"].items())
        counts = [str(row[status]) for status in shown]
        table.add_row(row["sweep"], row["arm"], str(row["target"]), *counts, best, at)
        for failure in row["failures"]:
            table.add_row("", "", "", *[""] * len(shown), f"failed {failure}", "")
    if not rows:
        table.add_row("no sweep has been started: run `ablate sweep FILE.yaml`")
    return table
