"""What the parent runs, the run "report" and the experiment of a sweep show in MLflow in addition to labels: the course
of the confirmed seeds as a band, and a description with the verdict, its figure and links."""

from __future__ import annotations

import math
import time
from urllib.parse import quote

from ablate import tracking
from ablate.config.markdown import escape
from ablate.experiment.metrics import name_in_mlflow
from ablate.reports.bands import collect_band
from ablate.reports.section import Document
from ablate.reports.usage import UsageUnit
from ablate.sweeps.records import SweepRecord
from ablate.verdict.comparison import Compared

NOTE = "mlflow.note.content"  # the tag that MLflow shows as the description of a run or an experiment
_BATCH = 900  # metrics in one call; MLflow takes 1000
_SUFFIXES = {"mean": "", "low": "_lowest_seed", "high": "_highest_seed"}
"""Of a band -> what its metric ends in."""


def log_band(record: SweepRecord, arm: str, compared: Compared, fails_more: bool) -> None:
    """Write the mean of an arm's fresh seeds over training to its parent run, under the name that the objective has in
    trials, with the lowest and the highest seed; nothing if it is there. NaN where no seed trained, and where the arm
    is shown to fail more often (`fails_more`): by the mean of the rest it would look better than it is. Raises
    StoreError."""
    from mlflow.entities import Metric

    if compared.looks is None:
        return
    band = {} if fails_more else collect_band(record, arm, compared)
    if not band:
        unit = UsageUnit.of(record)
        end = max((run.step * unit.per_update(run) for run in record.fresh(arm)), default=0)
        band = {end: dict.fromkeys(_SUFFIXES, math.nan)}
    now, metric, run_id = int(1000 * time.time()), name_in_mlflow(record.spec.objective.metric), record.parents[arm]
    known, last = tracking.client().get_run(run_id).data.metrics, band[max(band)]["mean"]
    if metric in known and is_same(known[metric], last):
        return
    points = [
        Metric(metric + _SUFFIXES[name], value, now, step) for step, row in band.items() for name, value in row.items()
    ]
    for start in range(0, len(points), _BATCH):
        tracking.client().log_batch(run_id, metrics=points[start : start + _BATCH])


def is_same(value: float, other: float) -> bool:
    """Return whether two values of a metric are equal, or neither is known."""
    return value == other or (math.isnan(value) and math.isnan(other))


def describe(document: Document, experiment: str, run_id: str, page: str) -> str:
    """Return the description of a report in Markdown: the answer in one line, its figure, the answer in full, and a
    link to the report's `page`. MLflow shows the first lines until it is unfolded, and their source in its list of
    experiments: they have no marks.

    The links are relative to the MLflow server's address.
    """
    full = [escape(text) for text in document.statements]
    lines = [escape(document.summary)] if document.summary else full
    lines += [escape(document.warning)] if document.warning else []
    if document.figures:
        figure = f"{document.figures[0].name}.png"
        lines.append(f"![{figure}](get-artifact?path={quote(figure)}&run_uuid={run_id})")
    lines += full if document.summary else []
    runs = f"#/experiments/{experiment}/runs/{run_id}"
    return "\n\n".join([*lines, f"[All tables and figures]({runs}/artifacts): `{page}` of the run *report*."])


def write_note(text: str, experiment: str, run_id: str) -> None:
    """Make `text` the description of the run "report" and of the experiment. Raises what MLflow raises."""
    tracking.client().set_tag(run_id, NOTE, text)
    tracking.client().set_experiment_tag(experiment, NOTE, text)
