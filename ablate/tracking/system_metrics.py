"""MLflow's system metrics of a run: use of processor, memory, disk, network and GPUs. Only on request."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from importlib.util import find_spec

from ablate.config.errors import AblateError
from ablate.config.lazy import describe_installation
from ablate.tracking.connection import client
from ablate.tracking.paths import tracking_uri
from ablate.tracking.tracker import Tracker

SWITCH = "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING"  # MLflow's own


def check_wanted() -> bool:
    """Return whether system metrics are requested. Raises AblateError if they are and psutil is missing."""
    wanted = os.environ.get(SWITCH, "").strip().lower() in ("true", "1")
    if wanted and find_spec("psutil") is None:
        raise AblateError(
            f"{SWITCH} requests system metrics, which need the Python module psutil. Unset it, or install this. "
            f"{describe_installation('system')}"
        )
    return wanted


@contextlib.contextmanager
def watch_system(tracker: Tracker, wanted: bool) -> Iterator[None]:
    """Let MLflow sample the system during the run, every MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL seconds (10), in a
    separate thread; a resumed run continues after its last sample. Samples before the run's own first metrics, with
    which MLflow's Compare is to open, are left out."""
    if not wanted:
        yield
        return
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    client()  # the store answers and has its tables
    logging.getLogger("mlflow.system_metrics").setLevel(logging.ERROR)

    class Monitor(SystemMetricsMonitor):
        def publish_metrics(self, metrics: dict[str, float]) -> None:
            if tracker.begun:
                super().publish_metrics(metrics)

    monitor = Monitor(tracker.run_id, resume_logging=True, tracking_uri=tracking_uri())
    monitor.start()
    try:
        yield
    finally:
        monitor.finish()
