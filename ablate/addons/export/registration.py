"""An exported model in MLflow's model registry: its files are artifacts of the run, which is the version's source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ablate import tracking
from ablate.config.errors import AblateError

FOLDER = "exported"  # of the artifacts of a run
_FORBIDDEN = "/:"  # what MLflow takes in no name of a model
_PICKLED = frozenset(("consolidated",))


@dataclass(frozen=True)
class Registered:
    """A version of a registered model."""

    name: str
    version: str
    run_id: str
    """Its source."""

    @property
    def uri(self) -> str:
        """The address by which MLflow finds its files."""
        return f"models:/{self.name}/{self.version}"


def check_registration(name: str, form: str) -> None:
    """Raise AblateError if a model of that format cannot be registered under `name`."""
    if not name.strip() or any(letter in name for letter in _FORBIDDEN):
        raise AblateError(f"--register {name!r}: a name must have at least one letter, and no / or :.")
    if form in _PICKLED:
        raise AblateError(
            f"--register does not accept a model in the format {form}, which is a pickle and may run code when it is "
            "loaded. Use --to safetensors, hf or timm."
        )


def require_run(model: str, run_id: str | None) -> str:
    """Return the MLflow run that the model `model` was trained in. Raises AblateError if this store has none."""
    if run_id is None or tracking.find_active_run(run_id) is None:
        text = f"{model} is not a run of this store, so it cannot be registered. Give a run's id or sweep:NAME/ARM."
        raise AblateError(text)
    return run_id


def register(folder: Path, form: str, run_id: str, name: str) -> Registered:
    """Store the exported `folder` as artifacts of the run and return the new version of the registered model `name`,
    which is created if missing. Raises StoreError."""
    from mlflow.exceptions import MlflowException

    place = f"{FOLDER}/{form}"
    with tracking.explain_errors(tracking.tracking_uri()), tracking.silence_logs():
        client = tracking.client()
        client.log_artifacts(run_id, str(folder), place)
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        source = f"{client.get_run(run_id).info.artifact_uri}/{place}"
        version = client.create_model_version(name, source, run_id, tags={"ablate.form": form})
    return Registered(name, str(version.version), run_id)
