"""Scores in MLflow: metrics `eval/TASK/METRIC` of the run, and question by question its artifacts
evaluation/TASK.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ablate import tracking
from ablate.evaluation.scoring import Score

FOLDER, TAG = "evaluation", "ablate.evaluated"


def metrics(scores: Mapping[str, Score]) -> dict[str, float]:
    """As they are called in MLflow."""
    return {f"eval/{task}/{name}": value for task, score in scores.items() for name, value in score.metrics.items()}


def log(run_id: str, scores: Mapping[str, Score], step: int) -> None:
    """Adds scores to a run, at `step` tokens; those of the same task are replaced. On how many questions each is, and
    after how many solved examples, is a tag beside them. Raises StoreError."""
    tracker = tracking.Tracker(run_id)
    tracker.log_metrics(metrics(scores), step)
    tracker.flush()
    for task, score in scores.items():
        tracker.log_text(json.dumps(score.to_dict()), f"{FOLDER}/{task}.json")
    with tracking.explain_errors(tracking.tracking_uri()):
        before = tracking.client().get_run(run_id).data.tags.get(TAG, "")
    counted = {f"{TAG}.{name}": f"{len(s.questions)} questions, {s.shots} shots" for name, s in scores.items()}
    tracker.set_tags({TAG: ",".join(sorted({*before.split(","), *scores} - {""})), **counted})


def read(experiment: str) -> dict[str, dict[str, Score]]:
    """Run -> task -> score, of all runs in an MLflow experiment that have any. Raises StoreError."""
    found: dict[str, dict[str, Score]] = {}
    if not tracking.store_exists():
        return found
    with tracking.explain_errors(tracking.tracking_uri()):
        client = tracking.client()
        there = client.get_experiment_by_name(experiment)
        runs = client.search_runs([there.experiment_id], f"tags.`{TAG}` != ''", max_results=1000) if there else []
        for run in runs:
            names = [name for name in run.data.tags[TAG].split(",") if name]
            files = {name: client.download_artifacts(run.info.run_id, f"{FOLDER}/{name}.json") for name in names}
            found[run.info.run_id] = {
                name: Score.from_dict(json.loads(Path(file).read_text(encoding="utf-8")))
                for name, file in files.items()
            }
    return found
