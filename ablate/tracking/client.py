"""MLflow: where the store is, what is logged and under which names.

One experiment per sweep, one parent run per arm, one child run per trial. Metrics are logged against the tokens or
images seen, in batches: a call costs milliseconds, a training step may cost less.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

from ablate.config.errors import StoreError
from ablate.tracking.databases import (
    creation_lock,
    redacted,
    shortened,
    sqlite_file,
)
from ablate.tracking.paths import is_remote, open_store, tracking_uri

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # what is tracked stays here
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

LOCKED = 120.0  # seconds that a SQLite database is waited for while another process has it locked
# a server that is away is noticed in seconds at the start, and waited for once a run is going
_SHORT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # else the UI takes it for one of language-model prompts


# ---------------------------------------------------------------------------------------------------- the store


@cache
def client() -> MlflowClient:
    """The MLflow client of this process, on a store that is known to answer.

    Missing tables are created under a lock, since several processes that do it at once fail.
    Raises StoreError for a server that does not answer or a damaged database.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "4")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    uri = tracking_uri()
    with patience(uri), quiet(), creation_lock(uri, _create):
        from mlflow.tracking import MlflowClient

        waiting = f"{uri}?timeout={LOCKED:g}" if sqlite_file(uri) and "?" not in uri else uri
        found = MlflowClient(tracking_uri=waiting)
        with environ(_SHORT):
            found.search_experiments(max_results=1)
    return found


def ask() -> None:
    """Raises StoreError where the store does not answer now; `client` has only asked when the process began."""
    found = client()
    with patience(tracking_uri()), environ(_SHORT):
        found.search_experiments(max_results=1)


def _create(uri: str) -> None:
    """Makes the tables of MLflow."""
    from mlflow.store.db.utils import _initialize_tables, create_sqlalchemy_engine

    engine = create_sqlalchemy_engine(uri)
    _initialize_tables(engine)
    engine.dispose()


@contextlib.contextmanager
def patience(uri: str) -> Iterator[None]:
    """Turns what MLflow and its database raise into a StoreError that says what to do."""
    import sqlalchemy.exc

    try:
        from mlflow.exceptions import MlflowException

        yield
    except (MlflowException, sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
        text = "No answer." if "Max retries exceeded" in str(error) else shortened(error)
        hint = (
            "Start the server, correct MLFLOW_TRACKING_URI, or unset it to use mlruns/."
            if uri.startswith("http")
            else "Check the disk's space and permissions; a damaged database can be moved away, a new one is made."
        )
        raise StoreError(f"The MLflow store {redacted(uri)} cannot be used: {text} {hint}") from None


@contextlib.contextmanager
def environ(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables that are set for a while."""
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


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps the notes that MLflow and alembic print while they create a database off the screen."""
    import logging

    loggers = [logging.getLogger(name) for name in ("alembic", "mlflow")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def experiment_id(name: str) -> str:
    """The id of the MLflow experiment `name`, created if missing, with its artifacts under the store."""
    from mlflow.exceptions import MlflowException

    uri = tracking_uri()
    with patience(uri):
        found = client().get_experiment_by_name(name)
        if found is None:
            location = None if is_remote() else str(open_store() / "artifacts" / name)
            try:
                return client().create_experiment(name, artifact_location=location, tags=_KIND)
            except MlflowException:  # another process was faster
                found = client().get_experiment_by_name(name)
                if found is None:
                    raise
        return found.experiment_id


def find_run(experiment: str, tags: Mapping[str, str]) -> str | None:
    """The id of the newest run in `experiment` that has all `tags`; None where there is none."""
    wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
    with patience(tracking_uri()):
        found = client().search_runs([experiment_id(experiment)], wanted, order_by=["attributes.start_time DESC"])
    return str(found[0].info.run_id) if found else None


# ---------------------------------------------------------------------------------------------------- runs
