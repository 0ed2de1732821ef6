"""MLflow: the store, the runs in it, and what is logged.

One experiment per sweep, one parent run per arm, one child run per trial. Metrics are logged against the tokens or
images seen, in batches: a call takes milliseconds, a training step may take less. MLflow itself is imported on first
use.
"""

from ablate.tracking.connection import (
    PLUGINS,
    check_store,
    client,
    describe_deleted,
    ensure_experiment,
    explain_errors,
    find_active_run,
    find_run,
    has_plugin,
    list_deleted,
    silence_logs,
)
from ablate.tracking.databases import redact, remember_address, shorten
from ablate.tracking.paths import cache_folder, is_remote, open_folder, open_store, store_path, tracking_uri
from ablate.tracking.tracker import STEP_METRIC, Tracker

__all__ = [
    "PLUGINS",
    "STEP_METRIC",
    "Tracker",
    "cache_folder",
    "check_store",
    "client",
    "describe_deleted",
    "ensure_experiment",
    "explain_errors",
    "find_active_run",
    "find_run",
    "has_plugin",
    "is_remote",
    "list_deleted",
    "open_folder",
    "open_store",
    "redact",
    "remember_address",
    "shorten",
    "silence_logs",
    "store_path",
    "tracking_uri",
]
