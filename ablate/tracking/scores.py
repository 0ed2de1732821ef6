"""Scores on downstream tasks in MLflow: metrics `eval/TASK/METRIC` of the run, and the results of each question as its
artifacts evaluation/TASK.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.tracking.connection import client, explain_errors, is_without
from ablate.tracking.paths import tracking_uri
from ablate.tracking.tracker import Tracker

FOLDER, TAG = "evaluation", "ablate.evaluated"


def name_metrics(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of each task by their names in MLflow."""
    return {f"eval/{task}/{name}": value for task, values in metrics.items() for name, value in values.items()}


def log_scores(run_id: str, scores: Mapping[str, Mapping[str, Any]], step: int) -> None:
    """Add the score of each task (metrics, questions, shots) to a run, at `step` tokens; those of the same task are
    replaced. A tag records the number of questions and of solved examples for each. Raises StoreError."""
    tracker = Tracker(run_id)
    tracker.log_metrics(name_metrics({task: score["metrics"] for task, score in scores.items()}), step)
    tracker.flush()
    for task, score in scores.items():
        tracker.log_text(json.dumps(score), f"{FOLDER}/{task}.json")
    with explain_errors(tracking_uri()):
        before = client().get_run(run_id).data.tags.get(TAG, "")
    counted = {f"{TAG}.{task}": f"{len(s['questions'])} questions, {s['shots']} shots" for task, s in scores.items()}
    tracker.set_tags({TAG: ",".join(sorted({*before.split(","), *scores} - {""})), **counted})


def read_scores(experiment: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return run -> task -> score, of all runs in an MLflow experiment that have any. Raises StoreError."""
    scores: dict[str, dict[str, dict[str, Any]]] = {}
    if is_without("SELECT 1 FROM tags WHERE key = ?", TAG):
        return scores
    from mlflow.entities import ViewType

    with explain_errors(tracking_uri()):
        mlflow = client()
        there = mlflow.get_experiment_by_name(experiment)
        runs = (
            mlflow.search_runs([there.experiment_id], f"tags.`{TAG}` != ''", ViewType.ALL, max_results=1000)
            if there
            else []
        )
        for run in runs:  # also of those that were deleted: their trials are not
            tasks = [task for task in run.data.tags[TAG].split(",") if task]
            files = {task: mlflow.download_artifacts(run.info.run_id, f"{FOLDER}/{task}.json") for task in tasks}
            scores[run.info.run_id] = {
                task: json.loads(Path(file).read_text(encoding="utf-8")) for task, file in files.items()
            }
    return scores
