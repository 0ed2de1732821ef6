"""How far the sweeps are: trials by status, the best so far, and what their checkpoints take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ablate.cli.tables import table
from ablate.config.formatting import number, setting, size
from ablate.sweeps.records import FINISHED, STATUSES, finished, title_of
from ablate.sweeps.storage import known_sweeps, read_sweep, storage_url
from ablate.training.runs import checkpoint_bytes

if TYPE_CHECKING:
    from rich.console import Console


def statuses(title: str | None = None, storage: str | None = None) -> list[dict[str, Any]]:
    """One row per arm of the sweep `title`, or of every sweep's latest generation. Raises SweepError for an unknown
    one."""
    url = storage_url(storage)
    titles = [title] if title else [title_of(n, g[-1]) for n, g in known_sweeps(url).items()]
    rows = []
    for name in titles:
        sweep = read_sweep(name, url)
        for arm in sweep.trials:
            best, confirmed = sweep.best(arm), sweep.confirmed.get(arm, [])
            runs = {t.run_id for t in (*sweep.trials[arm], *confirmed) if t.run_id}
            rows.append(
                {
                    "sweep": sweep.title,
                    "arm": arm,
                    "target": sweep.target(arm),
                    **sweep.counts(arm),
                    "confirmed": finished(confirmed),
                    "confirm_target": sweep.spec.confirm.seeds,
                    "metric": sweep.spec.objective.metric,
                    "best": best.value if best else None,
                    "params": best.params if best else {},
                    "checkpoint_bytes": sum(checkpoint_bytes(run_id) for run_id in runs),
                    "failures": [
                        *(f"#{t.number}: {t.reason}" for t in sweep.trials[arm] if t.status == "failed"),
                        *(f"seed {t.params['seed']}: {t.reason}" for t in confirmed if t.status == "failed"),
                    ],
                }
            )
    return rows


def render(rows: list[dict[str, Any]], console: Console) -> None:
    """Prints the rows as a table, below it why trials failed, or how to start a sweep where there is none."""
    if not rows:
        console.print("No sweep has been started yet. Start one with: ablate sweep FILE.yaml")
        return
    told = []
    for row in rows:
        done = sum(row[status] for status in FINISHED)
        counts = ", ".join(f"{row[status]} {status}" for status in STATUSES if row[status])
        if row["confirm_target"]:
            counts += f"; {row['confirmed']}/{row['confirm_target']} seeds confirmed"
        if row["checkpoint_bytes"]:
            counts += f"; checkpoints {size(row['checkpoint_bytes'])}"
        best = "" if row["best"] is None else f"{row['metric']} {number(row['best'])}"
        at = ", ".join(f"{path.rpartition('.')[2]}={setting(value)}" for path, value in row["params"].items())
        told.append([row["sweep"], row["arm"], f"{done}/{row['target']}", counts, best, at])
    console.print(table(["sweep", "arm", "finished", "trials", "best so far", "at"], told, right=["finished"]))
    for row in rows:
        for failure in row["failures"]:
            console.print(f"{row['sweep']}, {row['arm']}: failed {failure}", markup=False)
