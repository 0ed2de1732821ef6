"""The files, configuration and name of a run."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ablate import tracking
from ablate.config import plugins
from ablate.config.errors import AblateError, shorten_values
from ablate.config.merging import iterate_leaves
from ablate.data import Corpus
from ablate.experiment.trainer import HOW
from ablate.experiment.tree import Experiment
from ablate.tracking import remote_files

CHECKPOINT = "last.ckpt"
_KEPT = "kept"  # beside a checkpoint that other runs start from


def run_folder(run_id: str) -> Path:
    """Return the folder of a run's checkpoints. Raises StoreError if it cannot be written to."""
    return tracking.open_folder(f"runs/{run_id}")


def copy_run(experiment: Experiment, run_id: str) -> str:
    """Copy a run's last checkpoint and its configuration to `trainer.copy_to`, and return the folder's address there.
    Raises StoreError."""
    folder, url = run_folder(run_id), f"{str(experiment.trainer.copy_to).rstrip('/')}/{run_id}"
    with tempfile.TemporaryDirectory() as temporary:
        config = Path(temporary) / "config.yaml"
        config.write_text(experiment.to_yaml(), encoding="utf-8")
        remote_files.copy({"config.yaml": config, CHECKPOINT: folder / CHECKPOINT}, url)
    return url


def discard_checkpoint(run_id: str) -> None:
    """Remove a run's checkpoints, if there are any and no other run starts from them."""
    folder = tracking.store_path() / "runs" / run_id
    if folder.exists() and not (folder / _KEPT).exists():
        shutil.rmtree(folder, ignore_errors=True)


def keep_checkpoint(run_id: str) -> None:
    """Mark a run's checkpoint as the start of other runs, so that it is kept."""
    folder = tracking.open_store() / "runs" / run_id
    if folder.is_dir():
        (folder / _KEPT).touch()


def has_checkpoint(run_id: str) -> bool:
    """Return whether a run's last checkpoint is in the store."""
    return (tracking.store_path() / "runs" / run_id / CHECKPOINT).exists()


def measure_checkpoint(run_id: str) -> int:
    """Return the size of a run's checkpoints in bytes, without creating a folder."""
    folder = tracking.store_path() / "runs" / run_id
    with contextlib.suppress(FileNotFoundError):  # of a run that goes on, one may be moved just now
        return sum(file.stat().st_size for file in folder.rglob("*.*") if file.is_file())
    return 0


def load_experiment(run_id: str, overrides: Mapping[str, Any]) -> Experiment:
    """Return the experiment of an earlier run, from its stored configuration. `overrides` may change where it is
    computed (see `HOW`). Raises AblateError if there is no such run, it is finished, or anything else is to be changed,
    a plugin included: it would not be the same run."""
    from mlflow.exceptions import MlflowException

    if (run := tracking.find_active_run(run_id)) is None:
        raise AblateError(f"There is no run {run_id} to resume. ablate ui shows the runs.")
    try:
        text = Path(tracking.client().download_artifacts(run_id, "config.yaml")).read_text(encoding="utf-8")
    except (MlflowException, OSError) as error:
        raise AblateError(f"There is no run {run_id} to resume: {str(error).splitlines()[0]}") from None
    if other := [key for key in overrides if key not in HOW]:
        raise AblateError(f"A resumed run keeps its configuration; remove {_describe_stored(other, text)}.")
    status = run.data.tags.get("ablate.status", "")
    if status in ("completed", "diverged", "pruned"):
        raise AblateError(f"Run {run_id} is {status}; there is nothing left to train.")
    tree = yaml.safe_load(text)
    before, now = run.data.tags.get(tracking.PLUGINS, ""), _join_hashes(plugins.hash_contents(plugins.list_named(tree)))
    if now != before:  # before it is run
        raise AblateError(
            f"A plugin has changed since run {run_id} began (then {before}, now {now}). "
            "Restore it: there is a copy among the run's artifacts in MLflow, next to its config.yaml."
        )
    return Experiment.from_mapping(tree, overrides, source=f"run {run_id}")


def _describe_stored(paths: list[str], text: str) -> str:
    """Return each of `paths` with its value in the configuration `text`."""
    stored = dict(iterate_leaves(yaml.safe_load(text)))
    values = {path: stored.get(path, stored.get(f"{path}.kind")) for path in paths}
    return ", ".join(path if value is None else f"{path} (it has {value})" for path, value in values.items())


def describe_plugins(experiment: Experiment) -> str:
    """Return the plugin files with the SHA-256 of their contents."""
    return _join_hashes(plugins.hash_files(experiment.plugins))


def _join_hashes(hashes: Mapping[str, str]) -> str:
    return ", ".join(f"{file} {sha256}" for file, sha256 in hashes.items())


def name_run(experiment: Experiment) -> str:
    """Return the default name of a run: placement, alpha if it has one, learning rate."""
    alpha = getattr(experiment.norm, "alpha", None)
    part = f" alpha={alpha:.3g}" if alpha is not None else ""
    return f"{experiment.norm.kind}{part} lr={experiment.optimizer.lr:.3g}"


def shorten_settings(flat: Mapping[str, Any], arm: str | None) -> dict[str, Any]:
    """Return the settings by which runs are compared under short names: MLflow's Compare opens on the first three
    parameters in the alphabet that differ. A run without an alpha has the word none: where numbers are compared, the
    plot draws a run without a value just above the largest."""
    kinds = {path.removesuffix(".kind"): kind for path, kind in flat.items() if re.fullmatch(r"\w+\.kind", path)}
    alpha = flat.get("norm.alpha")
    return {**kinds, "alpha": "none" if alpha is None else alpha, "arm": arm, "lr": flat.get("optimizer.lr")}


def describe_error(error: BaseException) -> str:
    """Return the kind and the first line of an error, without the passwords of addresses."""
    text = tracking.redact(str(error)).strip()
    return shorten_values(f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}")


def count_epochs(experiment: Experiment, corpus: Corpus) -> str:
    """Return the number of epochs of the run."""
    trainer = experiment.trainer
    return f"{trainer.max_steps * trainer.batch_size / len(corpus.train):.3g}"
