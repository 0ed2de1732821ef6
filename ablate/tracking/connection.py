"""The connection to MLflow: the client of this process, its errors as messages, experiments and runs by name."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import shutil
import sqlite3
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING

from ablate.config.errors import AblateError, StoreError
from ablate.config.lazy import postpone_collection
from ablate.config.logs import silence
from ablate.tracking.databases import LOCKED, hold_creation_lock, redact, shorten, sqlite_file
from ablate.tracking.paths import is_remote, open_store, store_exists, tracking_uri

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Run
    from mlflow.tracking import MlflowClient

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # what is tracked stays here
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # its tracebacks: we report the errors

PLUGINS = "ablate.plugins"  # the tag of a run with its plugin files and their SHA-256

MOST_DELETED = 5
"""Deleted runs of a sweep that are named."""
_DELETED = re.compile(r"The (experiment|run) (\w+) must be in the 'active' state")
_PLAIN = re.compile(r"[\w.-]*", re.ASCII)  # what needs no escape in a filter

# a server that is away is noticed in seconds at the start, and waited for once a run is going
_SHORT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # else the UI takes it for one of language-model prompts


@cache
def client() -> MlflowClient:
    """Return the MLflow client of this process, for a store that answers.

    Missing tables are created under a lock, since several processes that do it at once fail.
    Raises StoreError for a server that does not answer or a damaged database.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "4")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    uri = tracking_uri()
    if not store_exists():
        open_store()
    with explain_errors(uri), silence_logs(), hold_creation_lock(uri, _create_tables) as address:
        with postpone_collection():
            from mlflow.store.db import utils
            from mlflow.tracking import MlflowClient

        utils._make_parent_dirs_if_sqlite = lambda uri: None  # it takes what an address writes in code for a path
        if sqlite_file(uri):
            address += f"{'&' if '?' in address else '?'}timeout={LOCKED:g}"
        connection = MlflowClient(tracking_uri=address)
        with set_environ(_SHORT):
            connection.search_experiments(max_results=1)
    return connection


def check_store() -> None:
    """Raise StoreError if the store does not answer now; `client` only checks at the start of the process."""
    connection = client()
    with explain_errors(tracking_uri()), set_environ(_SHORT):
        connection.search_experiments(max_results=1)


def _create_tables(uri: str) -> None:
    """Create the tables of MLflow."""
    from mlflow.store.db.utils import _initialize_tables, create_sqlalchemy_engine

    engine = create_sqlalchemy_engine(uri)
    _initialize_tables(engine)
    engine.dispose()


@contextlib.contextmanager
def explain_errors(uri: str) -> Iterator[None]:
    """Raise errors of MLflow and its database as a StoreError that says what to do."""
    import sqlalchemy.exc
    from mlflow.exceptions import MlflowException  # not within: Ctrl-C may end the import

    try:
        yield
    except (MlflowException, sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
        if deleted := _DELETED.search(str(error)):
            raise StoreError(describe_deleted(*deleted.groups())) from None
        text = "No answer." if "Max retries exceeded" in str(error) else shorten(error).rstrip(".") + "."
        hint = (
            "Start the server, correct MLFLOW_TRACKING_URI, or unset it to use mlruns/."
            if uri.startswith("http")
            else "It can only be read: set ABLATE_STORE to a folder that you may write to."
            if "readonly" in text
            else "Check the disk's space and permissions; a damaged database can be replaced by a backup."
        )
        raise StoreError(f"The MLflow store {redact(uri)} cannot be used: {text} {hint}") from None


def describe_deleted(kind: str, number: str, name: str = "") -> str:
    """Return a sentence on an experiment or a run that was deleted in MLflow, which keeps its data, with the command
    that restores it; `name` is shown beside its id."""
    program = "mlflow" if shutil.which("mlflow") else f"{shlex.quote(sys.executable)} -m mlflow"
    return (
        f"The {kind} {name or number} was deleted in MLflow. Nothing of it is lost yet. Restore it with:\n"
        f"  MLFLOW_TRACKING_URI={shlex.quote(redact(tracking_uri()))} {program} {kind}s restore --{kind}-id {number}"
    )


def find_active_run(run_id: str) -> Run | None:
    """Return a run; None if the store has no such run. Raises AblateError if it was deleted, StoreError if its
    experiment was, with the command that restores it."""
    from mlflow.exceptions import MlflowException

    with explain_errors(tracking_uri()):
        try:
            run = client().get_run(run_id)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            return None
        refuse_deleted(client().get_experiment(run.info.experiment_id))
    if run.info.lifecycle_stage == "deleted":
        raise AblateError(describe_deleted("run", run_id))
    return run


def refuse_deleted(experiment: Experiment) -> None:
    """Raise StoreError if an experiment was deleted, with the command that restores it and its runs."""
    if experiment.lifecycle_stage == "deleted":
        raise StoreError(describe_deleted("experiment", experiment.experiment_id, repr(experiment.name)))


def is_without(query: str, *values: str) -> bool:
    """Return whether there is no store, or a local one in which an SQL `query` finds nothing. The file is asked
    directly: importing MLflow takes seconds. False where only MLflow can say it."""
    if not store_exists():
        return True
    if (file := sqlite_file(tracking_uri())) is None:
        return False
    try:
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return database.execute(f"{query} LIMIT 1", values).fetchone() is None
    except sqlite3.Error:  # MLflow reports the problem
        return False


def list_deleted(title: str, run_ids: Collection[str]) -> list[str]:
    """Return sentences on the experiment `title`, if it was deleted in MLflow, or on those of its runs `run_ids` that
    were, with the commands that restore them. Raises StoreError."""
    deleted = "WHERE lifecycle_stage = 'deleted'"
    if is_without(f"SELECT 1 FROM runs {deleted} UNION SELECT 1 FROM experiments {deleted}"):
        return []
    from mlflow.entities import ViewType

    with explain_errors(tracking_uri()):
        experiment = client().get_experiment_by_name(title)
        if experiment is None:
            return []
        if experiment.lifecycle_stage == "deleted":
            return [describe_deleted("experiment", experiment.experiment_id, repr(title))]
        runs = client().search_runs([experiment.experiment_id], run_view_type=ViewType.DELETED_ONLY)
    lost = [run.info for run in runs if run.info.run_id in run_ids]
    told = [describe_deleted("run", run.run_id, repr(run.run_name)) for run in lost[:MOST_DELETED]]
    return told + ([f"{len(lost) - MOST_DELETED} more runs were deleted in MLflow."] if lost[MOST_DELETED:] else [])


@contextlib.contextmanager
def set_environ(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the context."""
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def silence_logs() -> AbstractContextManager[None]:
    """Suppress the messages that MLflow and alembic print while they create a database."""
    return silence("alembic", "mlflow")


def ensure_experiment(name: str) -> str:
    """Return the id of the MLflow experiment `name`, created if missing, with its artifacts under the store."""
    from mlflow.exceptions import MlflowException

    uri = tracking_uri()
    with explain_errors(uri):
        experiment = client().get_experiment_by_name(name)
        if experiment is None:
            location = None if is_remote() else (open_store() / "artifacts" / name).as_uri()
            try:
                return client().create_experiment(name, artifact_location=location, tags=_KIND)
            except MlflowException:  # another process was faster
                experiment = client().get_experiment_by_name(name)
                if experiment is None:
                    raise
        refuse_deleted(experiment)
        return str(experiment.experiment_id)


def has_plugin(sha256: str) -> bool:
    """Return whether a run of this store was trained with a plugin of that SHA-256. Does not create a store."""
    if not store_exists():
        return False
    with explain_errors(tracking_uri()):
        token = None
        while True:
            page = client().search_experiments(page_token=token)
            ids = [experiment.experiment_id for experiment in page]
            if ids and client().search_runs(ids, f"tags.`{PLUGINS}` LIKE '%{sha256}%'", max_results=1):
                return True
            if not (token := page.token):
                return False


def find_run(experiment: str, tags: Mapping[str, str]) -> str | None:
    """Return the id of the newest run in `experiment` that has all `tags`; None if there is none. MLflow's filters
    accept no value with both kinds of quotes, and no escapes: only plain values are used in the filter, and all are
    compared here.
    """
    plain = [f"tags.`{key}` = '{value}'" for key, value in tags.items() if _PLAIN.fullmatch(value)]
    with explain_errors(tracking_uri()):
        place, token = [ensure_experiment(experiment)], None
        while True:
            runs = client().search_runs(
                place, " and ".join(plain), order_by=["attributes.start_time DESC"], page_token=token
            )
            for run in runs:
                if all(run.data.tags.get(key) == value for key, value in tags.items()):
                    return str(run.info.run_id)
            if not (token := runs.token):
                return None
