"""The report of a sweep in MLflow: one run named "report", however often the report is made."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.sweeps.records import SweepRecord

ROLE = "ablate.role"
REPORT = "report"  # the value of ROLE and the name of the run


def locate_report(record: SweepRecord) -> dict[str, Any]:
    """Return the experiment, the address of the store and the parent run of each arm, without asking the store."""
    return {
        "experiment": record.title,
        "experiment_id": None,
        "tracking_uri": tracking.redact(tracking.tracking_uri()),
        "run_id": None,
        "parents": dict(record.parents),
    }


def find_or_start_run(title: str) -> dict[str, str]:
    """Return the `experiment_id` of the experiment `title` and the `run_id` of its report, created if missing. Raises
    StoreError."""
    experiment = tracking.ensure_experiment(title)
    with tracking.explain_errors(tracking.tracking_uri()):
        client = tracking.client()
        runs = client.search_runs([experiment], f"tags.`{ROLE}` = '{REPORT}'", order_by=["attributes.start_time ASC"])
    if runs:
        return {"experiment_id": experiment, "run_id": str(runs[0].info.run_id)}
    return {"experiment_id": experiment, "run_id": tracking.Tracker.start(title, REPORT, {ROLE: REPORT}).run_id}


def publish(run_id: str, files: Iterable[Path]) -> None:
    """Store `files` as artifacts of the run, over earlier ones of the same names, and end it. Raises StoreError."""
    with tracking.explain_errors(tracking.tracking_uri()):
        for file in files:
            tracking.client().log_artifact(run_id, str(file))
        tracking.client().set_tag(run_id, "ablate.status", "completed")
        tracking.client().set_terminated(run_id, "FINISHED")
