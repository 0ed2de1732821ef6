"""One MLflow run, written to in batches."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ablate.config.errors import AblateError, StoreError
from ablate.tracking.connection import client, ensure_experiment, explain_errors, find_active_run
from ablate.tracking.paths import open_folder, tracking_uri

logger = logging.getLogger(__name__)

STEP_METRIC = "trainer/step"  # optimizer updates, at every logged point
FLUSH_SECONDS = 5.0
FIRST_SECONDS = 30.0  # until the first batch at the latest
_OPENED = "val/"  # metrics that come first: MLflow's Compare opens on the first that it was sent
_LONGEST_DIGEST = 36  # characters that MLflow keeps of one
_BATCH = 500  # metrics in one call; MLflow takes up to 1000


class Tracker:
    """One MLflow run, written to in batches; no metric is logged twice at one step.

    Args:
        run_id: the run.
        logged: metric -> the tokens or images up to which the run has it.

    The first batch waits for the first validation, half a minute at most, and begins with it. If the store is
    temporarily unreachable, metrics are kept and sent with the next batch; metrics that are still unsent at the end are
    written to `mlruns/unsent/RUN_ID.json`, so that no result is lost.
    """

    def __init__(self, run_id: str, logged: Mapping[str, int] | None = None) -> None:
        self.run_id = run_id
        self._metrics: list[tuple[str, float, int, int]] = []
        self._last_flush = time.monotonic()
        self._patience = FLUSH_SECONDS if logged else FIRST_SECONDS
        self._logged = dict(logged or {})

    @classmethod
    def start(cls, experiment: str, name: str, tags: Mapping[str, Any], parent: str | None = None) -> Tracker:
        """Start a run in `experiment`; `parent` is the id of the run that it is nested in."""
        nesting = {"mlflow.parentRunId": parent} if parent else {}
        everything = {k: str(v) for k, v in {**tags, **nesting}.items()}
        with explain_errors(tracking_uri()):
            run = client().create_run(ensure_experiment(experiment), run_name=name, tags=everything)
        return cls(run.info.run_id)

    @classmethod
    def resume(cls, run_id: str) -> Tracker:
        """Continue an earlier run. Raises AblateError if it was deleted."""
        if (run := find_active_run(run_id)) is None:
            raise AblateError(f"There is no run {run_id} in the MLflow store, so it cannot be resumed.")
        with explain_errors(tracking_uri()):
            client().update_run(run_id, status="RUNNING")
            for tag in {"ablate.status", "ablate.reason"} & set(run.data.tags):  # how it ended earlier
                client().delete_tag(run_id, tag)
            histories = {key: client().get_metric_history(run_id, key) for key in run.data.metrics}
        return cls(run_id, {key: max(metric.step for metric in history) for key, history in histories.items()})

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Keep `values` for the next batch; `step` counts tokens or images seen."""
        now = int(time.time() * 1000)
        self.keep([(key, float(value), now, step) for key, value in values.items()])
        if len(self._metrics) >= _BATCH or time.monotonic() - self._last_flush > self._patience:
            self.flush()

    @property
    def unsent(self) -> list[tuple[str, float, int, int]]:
        """The points that are kept: metric, value, time in milliseconds, step."""
        return list(self._metrics)

    def keep(self, points: Iterable[tuple[str, float, int, int]]) -> None:
        """Keep points for the next batch, except those that the run has already."""
        for key, value, now, step in points:
            if step > self._logged.get(key, -1):
                self._logged[key] = step
                self._metrics.append((key, value, now, step))

    def flush(self) -> bool:
        """Send the kept metrics; return whether the store accepted them. Rejected ones are kept."""
        from mlflow.entities import Metric

        if self._patience == FIRST_SECONDS and self._metrics:
            self._metrics.sort(key=lambda point: not point[0].startswith(_OPENED))
            self._patience = FLUSH_SECONDS
        self._last_flush = time.monotonic()
        try:
            with explain_errors(tracking_uri()):
                while self._metrics:
                    batch = [Metric(*item) for item in self._metrics[:_BATCH]]
                    client().log_batch(self.run_id, metrics=batch)
                    del self._metrics[:_BATCH]
        except StoreError as error:
            logger.warning(f"\nMetrics are kept until the store answers. {error}")
            return False
        return True

    def log_params(self, values: Mapping[str, Any]) -> None:
        """Log flat parameters; null ones are left out, as MLflow would print them as the word None."""
        from mlflow.entities import Param

        known = [Param(key, str(value)) for key, value in values.items() if value is not None]
        with explain_errors(tracking_uri()):
            for i in range(0, len(known), 100):
                client().log_batch(self.run_id, params=known[i : i + 100])

    def set_tags(self, values: Mapping[str, Any]) -> None:
        """Set tags."""
        from mlflow.entities import RunTag

        with explain_errors(tracking_uri()):
            client().log_batch(self.run_id, tags=[RunTag(key, str(value)) for key, value in values.items()])

    def log_text(self, text: str, name: str) -> None:
        """Store `text` as the artifact `name`."""
        with explain_errors(tracking_uri()):
            client().log_text(self.run_id, text, name)

    def log_dataset(
        self, name: str, fingerprint: str, description: str, settings: Mapping[str, Any], profile: Mapping[str, Any]
    ) -> None:
        """Log a corpus as the training data of the run, which the column Dataset shows. Its digest is the beginning of
        `fingerprint`, its SHA-256, which is whole in the source; a run has it once, however often it is logged."""
        from mlflow.entities import Dataset, DatasetInput, InputTag
        from mlflow.exceptions import MlflowException

        source = {"fingerprint": fingerprint, "description": description, "settings": settings}
        dataset = Dataset(
            name=name,
            digest=fingerprint[:_LONGEST_DIGEST] or "unknown",
            source_type="ablate",
            source=json.dumps(source, default=str),
            profile=json.dumps(profile),
        )
        inputs = [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])]
        with explain_errors(tracking_uri()):
            try:
                client().log_inputs(self.run_id, inputs)
            except MlflowException as error:
                if not re.search("UNIQUE constraint|duplicate key|Duplicate entry", str(error)):
                    raise
                client().log_inputs(self.run_id, inputs)  # another worker has just logged the same corpus

    def has_artifact(self, name: str) -> bool:
        """Return whether the run has the artifact `name`."""
        with explain_errors(tracking_uri()):
            return any(item.path == name and item.file_size for item in client().list_artifacts(self.run_id))

    def log_file(self, file: Path, folder: str | None = None) -> None:
        """Store a file as an artifact."""
        with explain_errors(tracking_uri()):
            client().log_artifact(self.run_id, str(file), folder)

    def end(self, status: str, reason: str = "", tags: Mapping[str, Any] | None = None) -> None:
        """End the run as completed, diverged, pruned, paused, interrupted or failed; the tag `ablate.status` says
        which, beside `tags`.

        For MLflow a diverged or pruned run is FINISHED, a paused one SCHEDULED, an interrupted one KILLED and a failed
        one FAILED.
        """
        words = {"paused": "SCHEDULED", "interrupted": "KILLED", "failed": "FAILED"}
        mlflow_status = words.get(status, "FINISHED")
        sent = self.flush()
        try:
            self.set_tags({**(tags or {}), "ablate.status": status, **({"ablate.reason": reason} if reason else {})})
            with explain_errors(tracking_uri()):
                client().set_terminated(self.run_id, mlflow_status)
        except StoreError as error:
            logger.warning(f"\n{error}")
        if not sent:
            file = open_folder("unsent") / f"{self.run_id}.json"
            content = {"run_id": self.run_id, "status": status, "metrics": self._metrics}
            file.write_text(json.dumps(content))
            logger.warning(f"Metrics that the store did not accept are in {file}")
