"""MLflow: the store, the runs in it, and what is logged.

One experiment per sweep, one parent run per arm, one child run per trial. Metrics are logged against the tokens or
images seen, in batches: a call takes milliseconds, a training step may take less. MLflow itself is imported on first
use.
"""

from ablate.tracking.connection import PLUGINS as PLUGINS
from ablate.tracking.connection import check_store as check_store
from ablate.tracking.connection import client as client
from ablate.tracking.connection import describe_deleted as describe_deleted
from ablate.tracking.connection import ensure_experiment as ensure_experiment
from ablate.tracking.connection import explain_errors as explain_errors
from ablate.tracking.connection import find_active_run as find_active_run
from ablate.tracking.connection import find_run as find_run
from ablate.tracking.connection import has_plugin as has_plugin
from ablate.tracking.connection import list_deleted as list_deleted
from ablate.tracking.connection import silence_logs as silence_logs
from ablate.tracking.databases import redact as redact
from ablate.tracking.databases import remember_address as remember_address
from ablate.tracking.databases import shorten as shorten
from ablate.tracking.paths import cache_folder as cache_folder
from ablate.tracking.paths import is_remote as is_remote
from ablate.tracking.paths import open_folder as open_folder
from ablate.tracking.paths import open_store as open_store
from ablate.tracking.paths import store_path as store_path
from ablate.tracking.paths import tracking_uri as tracking_uri
from ablate.tracking.tracker import STEP_METRIC as STEP_METRIC
from ablate.tracking.tracker import Tracker as Tracker
