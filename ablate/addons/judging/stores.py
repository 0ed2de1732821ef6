"""Results in stores: an experiment of MLflow, a study of Optuna, a project of W&B on its server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.addons.judging.logs import import_reader
from ablate.addons.judging.rows import NAME, RUN, STATUS, Rows, collect, parse_cell
from ablate.config.errors import StoreError, did_you_mean
from ablate.config.formatting import join_first
from ablate.tracking.connection import set_environ
from ablate.tracking.databases import add_driver, file_exists, sqlite_file

if TYPE_CHECKING:
    from mlflow.entities import Experiment
    from mlflow.tracking import MlflowClient

    from ablate.reports.section import Document

_SOON = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
_SECONDS = 10  # that W&B is waited for
BEGIN, END = "<!-- ablate judge -->", "<!-- ablate judge ends -->"
"""Around what `write_to_mlflow` adds to a description."""


# ---------------------------------------------------------------------------------------------------- MLflow


def _open_experiment(name: str) -> tuple[MlflowClient, Experiment]:
    """Return the experiment `name` of the store at MLFLOW_TRACKING_URI, and a client. Creates nothing. Raises
    StoreError."""
    from mlflow.tracking import MlflowClient

    uri = tracking.tracking_uri()
    if (file := sqlite_file(uri)) and not file_exists(file):
        raise StoreError(
            f"There is no MLflow database {file}. Set MLFLOW_TRACKING_URI to the address of the store, such as "
            "http://localhost:5000 or sqlite:///mlflow.db."
        )
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        known = [one.name for one in client.search_experiments()]
        raise StoreError(
            f"There is no experiment {name!r} in the MLflow store {tracking.redact(uri)}. It has: "
            f"{join_first(known, 10) or 'none'}.{did_you_mean(name, known)}"
        )
    return client, experiment


def read_mlflow(name: str) -> Rows:
    """Return a row for each run of an experiment, with the last value of each metric. Raises StoreError."""
    with tracking.explain_errors(tracking.tracking_uri()), tracking.silence_logs(), set_environ(_SOON):
        client, experiment = _open_experiment(name)
        runs, token = [], None
        while True:
            page = client.search_runs([experiment.experiment_id], page_token=token, order_by=["attributes.start_time"])
            runs += page
            if not (token := page.token):
                break
    own = [run for run in runs if run.data.tags.get("ablate.role") != "report"]
    if not own:
        raise StoreError(f"The MLflow experiment {name!r} has no runs, so there is nothing to judge.")
    rows = [
        {
            RUN: run.info.run_id,
            NAME: run.info.run_name,
            STATUS: run.info.status.lower(),
            "params": {key: parse_cell(text) for key, text in run.data.params.items()},
            "tags": {key: parse_cell(text) for key, text in run.data.tags.items() if not key.startswith("mlflow.")},
            "metrics": run.data.metrics,
        }
        for run in own
    ]
    return collect(f"mlflow:{name}", rows)


def write_to_mlflow(name: str, document: Document, save: Callable[[Path], list[Path]]) -> str:
    """Store the files that `save` writes into a folder in the run "judge" of an experiment, and write verdict, figure
    and a link into its description, below what somebody else has written there. Return the run's id. Raises
    StoreError."""
    from ablate.reports.mlflow_run import NOTE, describe

    with tracking.explain_errors(tracking.tracking_uri()), tracking.silence_logs(), set_environ(_SOON):
        client, experiment = _open_experiment(name)
        number, tags = experiment.experiment_id, {"ablate.role": "report", "mlflow.runName": "judge"}
        found = client.search_runs([number], "attributes.run_name = 'judge'", max_results=1)
        run_id = str((found[0] if found else client.create_run(number, tags=tags)).info.run_id)
        with TemporaryDirectory() as folder:
            for path in save(Path(folder)):
                client.log_artifact(run_id, str(path))
        text = describe(document, number, run_id, "verdict.html").replace("run *report*", "run *judge*")
        head, _, rest = experiment.tags.get(NOTE, "").partition(BEGIN)
        parts = (head, f"{BEGIN}\n{text}\n{END}", rest.partition(END)[2])
        client.set_experiment_tag(number, NOTE, "\n\n".join(part.strip() for part in parts if part.strip()))
        client.set_terminated(run_id, "FINISHED")
    return run_id


# ---------------------------------------------------------------------------------------------------- Optuna


def read_optuna(place: str) -> Rows:
    """Return a row for each trial of the study at `place`, URL/STUDY. Raises StoreError."""
    import optuna

    from ablate.scheduler.storage import explain_damage, open_existing

    url, _, name = place.rpartition("/")
    if not url or not name or url.endswith("/"):
        raise StoreError(
            f"optuna:{tracking.redact(place)} is no study: its form is optuna:URL/STUDY, such as "
            "optuna:sqlite:///study.db/NAME."
        )
    try:
        storage = open_existing(add_driver(url))
    except StoreError as error:  # `judge` has no --storage
        raise StoreError(str(error).partition(" Choose another with --storage")[0]) from None
    if storage is None:
        raise StoreError(f"There is no Optuna storage at {tracking.redact(url)}.")
    with explain_damage(storage):
        known = optuna.study.get_all_study_names(storage)
        if name not in known:
            raise StoreError(
                f"There is no study {name!r} in {tracking.redact(url)}. It has: {join_first(known, 10) or 'none'}."
                f"{did_you_mean(name, known)}"
            )
        study = optuna.load_study(study_name=name, storage=storage)
        trials = study.get_trials(deepcopy=False)
    if len(study.directions) > 1:
        raise StoreError(f"The study {name!r} has {len(study.directions)} objectives: export the one to be judged.")
    if not trials:
        raise StoreError(f"The Optuna study {name!r} has no trials, so there is nothing to judge.")
    rows = [
        {
            "number": trial.number,
            STATUS: trial.state.name.lower(),
            "value": trial.value,
            "params": trial.params,
            "user_attrs": trial.user_attrs,
        }
        for trial in trials
    ]
    told = (
        "The rows are trials of an Optuna study: if a sampler chose their settings, the runs are not independent, and "
        "the best of a search is optimistic."
    )
    maximize = study.direction == optuna.study.StudyDirection.MAXIMIZE
    return collect(f"optuna:{name}", rows, told=[told], maximize=maximize)


# ---------------------------------------------------------------------------------------------------- W&B's server


def read_wandb(place: str) -> Rows:
    """Return a row for each run of the project at `place`, ENTITY/PROJECT, with its summary. Raises AblateError."""
    table = ". Or download the table of runs as CSV, and judge that."
    wandb = import_reader("wandb", "a project of W&B", table)
    try:
        rows = list(_list_wandb_runs(wandb.Api(timeout=_SECONDS).runs(place)))
    except Exception as error:  # those of its client have no common class
        raise StoreError(f"W&B does not give the runs of {place!r}: {tracking.shorten(error)}") from None
    if not rows:
        raise StoreError(f"The W&B project {place!r} has no runs, so there is nothing to judge.")
    return collect(f"wandb:{place}", rows)


def _list_wandb_runs(runs: Any) -> Iterator[dict[str, Any]]:
    for run in runs:
        summary = {key: value for key, value in dict(run.summary).items() if not key.startswith("_")}
        numbers = {key: value for key, value in summary.items() if isinstance(value, (int, float, str))}
        config = {key: value for key, value in run.config.items() if not key.startswith("_")}
        yield {RUN: run.id, NAME: run.name, STATUS: run.state, "config": config, **numbers}
