"""The report of a sweep in MLflow: one run named "report", which later reports reuse, and additions to that run, to the
parent runs of arms and to the experiment: verdicts as labels, the course of the fresh seeds, and a description.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ablate import tracking
from ablate.config.errors import StoreError
from ablate.config.markdown import escape
from ablate.experiment.metrics import name_in_mlflow
from ablate.reports.bands import collect_band
from ablate.reports.section import Document
from ablate.reports.usage import UsageUnit
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.verdict_summary import tell_arm, tell_verdict
from ablate.verdict.comparison import Compared

NOTE = "mlflow.note.content"  # the tag that MLflow shows as the description of a run or an experiment
_BATCH = 900  # metrics in one call; MLflow takes 1000
_SUFFIXES = {"mean": "", "low": "_lowest_seed", "high": "_highest_seed"}
"""Number of a band -> the end of its metric's name."""


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
        figure = f"{document.figures[0].name}.svg"
        lines.append(f"![{figure}](get-artifact?path={quote(figure)}&run_uuid={run_id})")
    lines += full if document.summary else []
    runs = f"#/experiments/{experiment}/runs/{run_id}"
    return "\n\n".join([*lines, f"[All tables and figures]({runs}/artifacts): `{page}` of the run *report*."])


ROLE = "ablate.role"
REPORT = "report"  # the value of ROLE and the name of the run
_PREFIX = "verdict/"  # of metrics
_LONGEST = 5000  # letters of a tag, the least that MLflow's stores take


@dataclass(frozen=True)
class Labels:
    """Tags and metrics of a run that show the verdict."""

    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    """NaN if there is no value, so that an earlier one is replaced."""


def label_arm(record: SweepRecord, arm: str, comparisons: Mapping[str, Compared]) -> Labels:
    """Return the labels of an arm's parent run: the verdict, also as its description, the difference from the baseline
    where both trained and the ends of its interval, how many seeds it is over, failures and seeds, and the mean where
    it trained with the ends of its interval."""
    compared, baseline = comparisons[arm], record.spec.baselines[arm]
    difference, failures, mean = compared.difference, compared.failures, compared.estimate
    low, high = (difference.interval if difference else None) or (math.nan, math.nan)
    mean_low, mean_high = (mean.interval if mean else None) or (math.nan, math.nan)
    metrics = {
        "failures": failures.failed if failures else math.nan,
        "seeds": failures.n if failures else 0,
        "mean_when_trained": mean.mean if mean else math.nan,
        "mean_low": mean_low,
        "mean_high": mean_high,
    }
    if arm != baseline:
        metrics |= {
            "difference_when_both_trained": difference.mean if difference else math.nan,
            "difference_low": low,
            "difference_high": high,
            "difference_seeds": difference.n if difference else 0,
        }
    metric = name_in_mlflow(record.spec.objective.metric)
    told = ("" if arm == baseline else f"Against {baseline}: ") + tell_arm(record, arm, comparisons)
    note = f"{escape(told)}. `{metric}` is the mean of the fresh seeds that trained; NaN if it fails more often."
    tags = {"ablate.verdict": tell_verdict(record, arm, comparisons), "ablate.baseline": baseline, NOTE: note}
    return Labels(tags, {f"{_PREFIX}{name}": float(value) for name, value in metrics.items()})


def label_parents(record: SweepRecord, compared: Mapping[str, Compared]) -> None:
    """Write the verdict on each arm, and the course of its seeds, to its parent run, if that is still there. Raises
    nothing. The course comes first: MLflow's Compare opens on the metric that it was sent first."""
    sides = {arm: one.versus.failure_side for arm, one in compared.items() if one.versus}
    failing = {arm if side > 0 else record.spec.baselines[arm] for arm, side in sides.items() if side}
    for arm, one in compared.items():
        if arm in record.parents:
            with contextlib.suppress(StoreError), tracking.explain_errors(tracking.tracking_uri()):
                log_band(record, arm, one, arm in failing)
                _label(record.parents[arm], label_arm(record, arm, compared))


def _label(run_id: str, labels: Labels) -> None:
    """Write changed labels only, so that a repeated report adds no second point. The step is the number of seeds."""
    from mlflow.entities import Metric, RunTag

    now, known = int(1000 * time.time()), tracking.client().get_run(run_id).data.metrics
    seeds = int(labels.metrics.get(f"{_PREFIX}seeds", 0))
    tracking.client().log_batch(
        run_id,
        metrics=[
            Metric(key, value, now, seeds)
            for key, value in labels.metrics.items()
            if key not in known or not is_same(value, known[key])
        ],
        tags=[RunTag(key, value[:_LONGEST]) for key, value in labels.tags.items()],
    )


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
    found = str(runs[0].info.run_id) if runs else tracking.Tracker.start(title, REPORT, {ROLE: REPORT}).run_id
    return {"experiment_id": experiment, "run_id": found}


def publish(
    run_id: str, files: Iterable[Path], labels: Labels | None = None, note: str = "", experiment_id: str = ""
) -> None:
    """Store `files` as artifacts of the run, replacing earlier ones of the same names, with `labels`, and end it.
    `note` is the description of the run and of the experiment. Raises StoreError."""
    with tracking.explain_errors(tracking.tracking_uri()):
        for file in files:
            tracking.client().log_artifact(run_id, str(file))
        if labels:
            _label(run_id, labels)
        if note:
            tracking.client().set_tag(run_id, NOTE, note)
            tracking.client().set_experiment_tag(experiment_id, NOTE, note)
        tracking.client().set_tag(run_id, "ablate.status", "completed")
        tracking.client().set_terminated(run_id, "FINISHED")
