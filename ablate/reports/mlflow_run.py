"""The report of a sweep in MLflow: one run named "report", which is reused by later reports."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.config.errors import StoreError
from ablate.reports.mlflow_notes import is_same, log_band, write_note
from ablate.sweeps.records import SweepRecord
from ablate.verdict.comparison import Compared
from ablate.verdict.effects import Effect

ROLE = "ablate.role"
REPORT = "report"  # the value of ROLE and the name of the run
_PREFIX = "verdict/"  # of metrics
_UNNAMEABLE = re.compile(r"[^\w.\- ]", re.ASCII)  # what MLflow takes in no name of a metric
_LONGEST_NAME = 150  # letters of an arm in the name of a metric, which has 250
_PATHS = (".", "..")  # which lead elsewhere: MLflow may store a metric as a file
_LONGEST = 5000  # letters of a tag, the least that MLflow's stores take


@dataclass(frozen=True)
class Labels:
    """Tags and metrics of a run that show the verdict."""

    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    """NaN if there is no value, so that an earlier one is replaced."""


def label_arm(arm: str, baseline: str, compared: Compared) -> Labels:
    """Return the labels of an arm's parent run: the kind, the difference from the baseline where both trained and the
    ends of its interval, how many seeds it is over, failures and seeds, and the mean where it trained with the ends of
    its interval."""
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
    tags = {"ablate.verdict": compared.kind, "ablate.baseline": baseline}
    return Labels(tags, {f"{_PREFIX}{name}": float(value) for name, value in metrics.items()})


def label_report(
    verdict: str,
    baseline: str,
    compared: Mapping[str, Compared],
    against: Mapping[str, str] | None = None,
    effects: Mapping[str, Effect] = {},
) -> Labels:
    """Return what the run of the report says: the verdict in full, of each arm what its parent run says, and of each of
    the `effects` of a factorial the verdict, the mean and the ends of its interval. `against`: arm -> the one that it
    is compared with; None: all with `baseline`."""
    tags = {"ablate.verdict": verdict, "ablate.baseline": baseline}
    metrics: dict[str, float] = {}
    names = name_metrics(compared)
    for arm, one in compared.items():
        own, name = label_arm(arm, (against or {}).get(arm, baseline), one), names[arm]
        tags[f"ablate.verdict.{name}"] = own.tags["ablate.verdict"]
        metrics |= {f"{key}/{name}": value for key, value in own.metrics.items()}
    names = name_metrics(effects)
    for contrast, effect in effects.items():
        difference, name = effect.versus.difference, names[contrast]
        low, high = effect.versus.interval or (math.nan, math.nan)
        tags[f"ablate.verdict.effect.{name}"] = effect.kind
        figures = {"effect": difference.mean if difference else math.nan, "effect_low": low, "effect_high": high}
        metrics |= {f"{_PREFIX}{key}/{name}": value for key, value in figures.items()}
        metrics[f"{_PREFIX}seeds/{name}"] = float(effect.versus.seeds)
    return Labels(tags, metrics)


def name_metrics(arms: Iterable[str]) -> dict[str, str]:
    """Return arm -> its name as a part of the name of a metric: its own in letters that MLflow takes, with a few digits
    behind where another arm has the same, or MLflow would not take it yet."""
    names = {arm: _UNNAMEABLE.sub("_", arm)[:_LONGEST_NAME] for arm in arms}
    counts = Counter(names.values())
    return {
        arm: f"{name}-{hashlib.sha256(arm.encode()).hexdigest()[:8]}" if counts[name] > 1 or name in _PATHS else name
        for arm, name in names.items()
    }


def label_parents(record: SweepRecord, compared: Mapping[str, Compared]) -> None:
    """Write the verdict on each arm, and the course of its seeds, to its parent run, if that is still there. Raises
    nothing. The course comes first: MLflow's Compare opens on the metric that it was sent first."""
    sides = {arm: one.versus.failure_side for arm, one in compared.items() if one.versus}
    failing = {arm if side > 0 else record.spec.baselines[arm] for arm, side in sides.items() if side}
    for arm, one in compared.items():
        if arm in record.parents:
            with contextlib.suppress(StoreError), tracking.explain_errors(tracking.tracking_uri()):
                log_band(record, arm, one, arm in failing)
                _label(record.parents[arm], label_arm(arm, record.spec.baselines[arm], one))


def _label(run_id: str, labels: Labels) -> None:
    """Write changed labels only, so that a repeated report adds no second point. The step is the number of seeds."""
    from mlflow.entities import Metric, RunTag

    now, known = int(1000 * time.time()), tracking.client().get_run(run_id).data.metrics
    tracking.client().log_batch(
        run_id,
        metrics=[
            Metric(key, value, now, _find_seeds(key, labels))
            for key, value in labels.metrics.items()
            if key not in known or not is_same(value, known[key])
        ],
        tags=[RunTag(key, value[:_LONGEST]) for key, value in labels.tags.items()],
    )


def _find_seeds(key: str, labels: Labels) -> int:
    """Return the seeds that a metric is over: those of the run's arm, or, in a report, of the arm that `key` names."""
    _, _, arm = key.removeprefix(_PREFIX).partition("/")
    return int(labels.metrics[f"{_PREFIX}seeds{'/' if arm else ''}{arm}"])


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
            write_note(note, experiment_id, run_id)
        tracking.client().set_tag(run_id, "ablate.status", "completed")
        tracking.client().set_terminated(run_id, "FINISHED")
