"""What the parent runs, the run "report" and the experiment of a sweep show in MLflow in addition to labels: the course
of the confirmed seeds as a band, and a description with the verdict, its figure and links."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ablate import tracking
from ablate.config.markdown import escape
from ablate.experiment.metrics import name_in_mlflow
from ablate.reports.bands import collect_band
from ablate.sweeps.records import SweepRecord
from ablate.verdict.records import Compared

if TYPE_CHECKING:
    from ablate.reports.report_data import ReportData

NOTE = "mlflow.note.content"  # the tag that MLflow shows as the description of a run or an experiment
BAND = "ablate.band_seeds"  # the tag of a parent run with the seeds whose band it has
_FIGURES = ("grid", "effects", "verdict", "confirmed", "learning_rate", "bands", "curves")
"""The first that was drawn is shown."""
_BATCH = 900  # metrics in one call; MLflow takes 1000


def log_band(record: SweepRecord, arm: str, compared: Compared) -> None:
    """Write the band of an arm's confirmed seeds to its parent run, once for the same seeds. Raises StoreError."""
    from mlflow.entities import Metric

    band = collect_band(record, arm, compared)
    seeds = ",".join(str(seed) for seed in sorted(compared.outcomes))
    run_id = record.parents[arm]
    if not band or tracking.client().get_run(run_id).data.tags.get(BAND) == seeds:
        return
    now, metric = int(1000 * time.time()), name_in_mlflow(record.spec.objective.metric)
    points = [Metric(f"{metric}/{name}", value, now, step) for step, row in band.items() for name, value in row.items()]
    for start in range(0, len(points), _BATCH):
        tracking.client().log_batch(run_id, metrics=points[start : start + _BATCH])
    tracking.client().set_tag(run_id, BAND, seeds)


def describe(report: ReportData, experiment: str, run_id: str) -> str:
    """Return the description of a sweep in Markdown: the verdict in one line, its figure, the verdict in full, and a
    link to the report. MLflow shows the first lines until it is unfolded.

    The links are relative to the MLflow server's address.
    """
    lines = [f"**{escape(report.summary)}**"] if report.confirmed else []
    if report.scale:
        lines.append(escape(report.scale))
    if figure := _pick_figure(report.figures):
        lines.append(f"![{figure}](get-artifact?path={quote(figure)}&run_uuid={run_id})")
    lines.append(escape(report.verdict))
    runs = f"#/experiments/{experiment}/runs/{run_id}"
    lines.append(f"[All tables and figures]({runs}/artifacts): `report.html` of the run *report*.")
    return "\n\n".join(lines)


def _pick_figure(figures: Sequence[Path]) -> str:
    """Return the file name of the figure that shows the verdict, or else the search; '' if there is none."""
    names = {path.stem: path.name for path in figures}
    return next((names[stem] for stem in _FIGURES if stem in names), "")


def write_note(text: str, experiment: str, run_id: str) -> None:
    """Make `text` the description of the run "report" and of the experiment. Raises what MLflow raises."""
    tracking.client().set_tag(run_id, NOTE, text)
    tracking.client().set_experiment_tag(experiment, NOTE, text)
