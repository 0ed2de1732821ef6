"""MLflow: where the store is, what is logged and under which names.

One experiment per sweep, one parent run per arm, one child run per trial. Metrics are logged against the tokens or
images seen, in batches: a call costs milliseconds, a training step may cost less. MLflow itself is imported on first
use.
"""

from ablate.tracking.client import ask, client, environ, experiment_id, find_run, patience, quiet
from ablate.tracking.databases import creation_lock, redacted, shortened, sqlite_file
from ablate.tracking.paths import cache_folder, exists, is_remote, open_store, store_path, subfolder, tracking_uri
from ablate.tracking.tracker import STEP_METRIC, Tracker

__all__ = [
    "STEP_METRIC",
    "Tracker",
    "ask",
    "cache_folder",
    "client",
    "creation_lock",
    "environ",
    "exists",
    "experiment_id",
    "find_run",
    "is_remote",
    "open_store",
    "patience",
    "quiet",
    "redacted",
    "shortened",
    "sqlite_file",
    "store_path",
    "subfolder",
    "tracking_uri",
]
