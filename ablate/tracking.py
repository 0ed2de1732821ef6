"""MLflow: where the store is, what is logged and under which names.

One experiment per sweep, one parent run per arm, one child run per trial. Metrics are logged against the tokens or
images seen, in batches: a call costs milliseconds, a training step may cost less.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.databases import CREATING, missing_driver, server_lock, with_driver
from ablate.errors import AblateError, StoreError
from ablate.remote import is_url

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # what is tracked stays here
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

STEP_METRIC = "trainer/step"  # optimizer updates, at every logged point
FLUSH_SECONDS = 5.0
LOCKED = 120.0  # seconds that a SQLite database is waited for while another process has it locked
# a server that is away is noticed in seconds at the start, and waited for once a run is going
_SHORT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # else the UI takes it for one of language-model prompts
_BATCH = 500  # metrics in one call; MLflow takes up to 1000


# ---------------------------------------------------------------------------------------------------- the store


def store_path() -> Path:
    """The folder of all results: `mlruns/` of the current folder, or what ABLATE_STORE names. It may be missing."""
    given = os.environ.get("ABLATE_STORE", "mlruns")
    if is_url(given):
        raise StoreError(
            f"ABLATE_STORE is {given}, and has to be a folder: runs lock, append and move files there. Data and warm "
            "checkpoints are read from addresses; trainer.copy_to takes finished runs to one."
        )
    return Path(given).absolute()


def store() -> Path:
    """The folder of all results, created if missing. Raises StoreError where it cannot be written to."""
    folder = store_path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StoreError(
            f"Results cannot be written to {folder}: {error.strerror or error}. "
            "Run from a folder that you may write to, or set ABLATE_STORE to one."
        ) from None
    return folder


def subfolder(name: str) -> Path:
    """A folder of the store, created if missing. Raises StoreError where it cannot be."""
    folder = store() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"The folder {folder} cannot be made: {error.strerror or error}.") from None
    return folder


def cache_folder() -> Path:
    """Where prepared data lies: `cache/` of the store."""
    return store() / "cache"


def tracking_uri() -> str:
    """MLFLOW_TRACKING_URI, or the SQLite database of the store."""
    given = os.environ.get("MLFLOW_TRACKING_URI")
    return with_driver(given) if given else f"sqlite:///{store() / 'mlflow.db'}"


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


def exists() -> bool:
    """Whether there is a store to read from: a server, or a database that has been made."""
    return remote() or not (file := sqlite_file(tracking_uri())) or Path(file).exists()


def remote() -> bool:
    """Whether the store is a server, which may be away and come back."""
    return tracking_uri().startswith("http")


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


def shortened(error: BaseException) -> str:
    """An error's text on one line, cut at a word, without passwords and SQLAlchemy's link to its manual."""
    text = re.sub(r"\(Background on this error at: \S+\)", "", redacted(str(error)))
    return textwrap.shorten(text, 300, placeholder=" ...")


def redacted(text: str) -> str:
    """`text` without the passwords of the addresses in it."""
    return re.sub(r"(://[^:/@\s]+:)[^@\s]+@", r"\1***@", text)


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
def creation_lock(uri: str, create: Callable[[str], None]) -> Iterator[None]:
    """Lets one process at a time open, and where its tables are missing create, the database at `uri`. A missing SQLite
    file is made by `create` under another name and moved into place when it is whole: one that was half made when its
    process was killed is of no use."""
    file = sqlite_file(uri)
    if file is None:
        with _creating(uri):
            yield
        return
    from filelock import FileLock

    if not file.parent.is_dir():  # the lock would make it
        raise StoreError(f"The database {redacted(uri)} cannot be made: there is no folder {file.parent}.")
    with FileLock(f"{file}.lock"):
        if not file.exists():
            part = file.with_name(f"{file.name}.part")
            for left_over in file.parent.glob(f"{part.name}*"):
                left_over.unlink()
            create(f"sqlite:///{part}")
            with contextlib.closing(sqlite3.connect(part)) as database:
                database.execute("PRAGMA journal_mode=WAL")  # readers and writers do not wait for each other
            os.replace(part, file)
        yield


@contextlib.contextmanager
def _creating(uri: str) -> Iterator[None]:
    """The lock of a database server; an MLflow server has its own ways."""
    from sqlalchemy import create_engine, pool

    if not uri.startswith(("postgres", "mysql", "mariadb")):
        yield
        return
    try:
        engine = create_engine(uri, poolclass=pool.NullPool)
    except ImportError as error:
        raise missing_driver(error, f"The database {redacted(uri)}") from None
    with server_lock(engine, CREATING):
        yield


def sqlite_file(uri: str) -> Path | None:
    """The file of the SQLite database at `uri`; None for a server."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


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
            location = None if remote() else str(store() / "artifacts" / name)
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


class Tracker:
    """One MLflow run, written to in batches; no metric is logged twice at one step.

    Args:
        run_id: the run.
        logged: metric -> the tokens or images up to which the run has it.

    Where the store is away for a while, metrics are kept and sent with the next batch; what is still unsent at the
    end is written to `mlruns/unsent/RUN_ID.json`, so that nothing that was computed is lost.
    """

    def __init__(self, run_id: str, logged: Mapping[str, int] | None = None) -> None:
        self.run_id = run_id
        self._metrics: list[tuple[str, float, int, int]] = []
        self._last_flush = time.monotonic()
        self._logged = dict(logged or {})

    @classmethod
    def start(cls, experiment: str, name: str, tags: Mapping[str, Any], parent: str | None = None) -> Tracker:
        """A new run in `experiment`; `parent` is the id of the run that it is nested in."""
        nesting = {"mlflow.parentRunId": parent} if parent else {}
        everything = {k: str(v) for k, v in {**tags, **nesting}.items()}
        with patience(tracking_uri()):
            run = client().create_run(experiment_id(experiment), run_name=name, tags=everything)
        return cls(run.info.run_id)

    @classmethod
    def resume(cls, run_id: str) -> Tracker:
        """An earlier run, continued. Raises AblateError where it was deleted."""
        from mlflow.exceptions import MlflowException

        with patience(tracking_uri()):
            try:
                run = client().get_run(run_id)
                client().update_run(run_id, status="RUNNING")
            except MlflowException as error:
                if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    raise
                raise AblateError(f"The run {run_id} is gone from MLflow, so it cannot go on.") from None
            if "ablate.status" in run.data.tags:
                client().delete_tag(run_id, "ablate.status")
            histories = {key: client().get_metric_history(run_id, key) for key in run.data.metrics}
        return cls(run_id, {key: max(metric.step for metric in found) for key, found in histories.items()})

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Keeps `values` for the next batch; `step` counts tokens or images seen."""
        now = int(time.time() * 1000)
        self.keep([(key, float(value), now, step) for key, value in values.items()])
        if len(self._metrics) >= _BATCH or time.monotonic() - self._last_flush > FLUSH_SECONDS:
            self.flush()

    @property
    def unsent(self) -> list[tuple[str, float, int, int]]:
        """What is kept: metric, value, time in milliseconds, step."""
        return list(self._metrics)

    def keep(self, points: Iterable[tuple[str, float, int, int]]) -> None:
        """Takes up what was unsent when a checkpoint was written, or is new; what the run has is left out."""
        for key, value, now, step in points:
            if step > self._logged.get(key, -1):
                self._logged[key] = step
                self._metrics.append((key, value, now, step))

    def flush(self) -> bool:
        """Sends what is kept. False where the store did not take it; it is kept then."""
        from mlflow.entities import Metric

        self._last_flush = time.monotonic()
        try:
            with patience(tracking_uri()):
                while self._metrics:
                    batch = [Metric(*item) for item in self._metrics[:_BATCH]]
                    client().log_batch(self.run_id, metrics=batch)
                    del self._metrics[:_BATCH]
        except StoreError as error:
            print(f"\nMetrics are kept until the store answers. {error}", file=sys.stderr)
            return False
        return True

    def params(self, values: Mapping[str, Any]) -> None:
        """Logs flat parameters; null ones are left out, as MLflow would print them as the word None."""
        from mlflow.entities import Param

        known = [Param(key, str(value)) for key, value in values.items() if value is not None]
        with patience(tracking_uri()):
            for i in range(0, len(known), 100):
                client().log_batch(self.run_id, params=known[i : i + 100])

    def tags(self, values: Mapping[str, Any]) -> None:
        """Sets tags."""
        from mlflow.entities import RunTag

        with patience(tracking_uri()):
            client().log_batch(self.run_id, tags=[RunTag(key, str(value)) for key, value in values.items()])

    def text(self, text: str, name: str) -> None:
        """Stores `text` as the artifact `name`."""
        with patience(tracking_uri()):
            client().log_text(self.run_id, text, name)

    def has(self, name: str) -> bool:
        """Whether the run has the artifact `name`."""
        with patience(tracking_uri()):
            return any(item.path == name and item.file_size for item in client().list_artifacts(self.run_id))

    def file(self, file: Path, folder: str | None = None) -> None:
        """Stores a file as an artifact."""
        with patience(tracking_uri()):
            client().log_artifact(self.run_id, str(file), folder)

    def end(self, status: str, reason: str = "") -> None:
        """Ends the run as completed, diverged, pruned, interrupted or failed; the tag `ablate.status` says which.

        For MLflow a diverged or pruned run is FINISHED, an interrupted one KILLED and a failed one FAILED.
        """
        mlflow_status = {"interrupted": "KILLED", "failed": "FAILED"}.get(status, "FINISHED")
        sent = self.flush()
        try:
            self.tags({"ablate.status": status, **({"ablate.reason": reason} if reason else {})})
            with patience(tracking_uri()):
                client().set_terminated(self.run_id, mlflow_status)
        except StoreError as error:
            print(f"\n{error}", file=sys.stderr)
        if not sent:
            file = subfolder("unsent") / f"{self.run_id}.json"
            content = {"run_id": self.run_id, "status": status, "metrics": self._metrics}
            file.write_text(json.dumps(content))
            print(f"What the store did not take is in {file}", file=sys.stderr)
