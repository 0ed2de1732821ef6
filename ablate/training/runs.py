"""The files, configuration, inputs, name and errors of a run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from ablate import tracking
from ablate.config import plugins
from ablate.config.errors import AblateError, DataError, OutOfMemory, StoreError, TakenOverError, shorten_values
from ablate.config.formatting import format_settings
from ablate.config.lazy import torch
from ablate.config.merging import iterate_leaves
from ablate.data import Corpus
from ablate.data.files import fingerprint_files
from ablate.data.text.tokenizers import load_data_tokenizer
from ablate.experiment.trainable import Trainable
from ablate.experiment.trainer import HOW
from ablate.experiment.tree import Experiment
from ablate.tracking import remote_files
from ablate.tracking.provenance import log_facts, pick_shown
from ablate.tracking.tracker import Tracker
from ablate.training.procedures import Place

logger = logging.getLogger(__name__)

CHECKPOINT = "last.ckpt"
INPUTS = "inputs.json"
"""The artifact with the inputs that a run began with."""
_KEPT = "kept"  # beside a checkpoint that other runs start from


def run_folder(run_id: str) -> Path:
    """Return the folder of a run's checkpoints. Raises StoreError if it cannot be written to."""
    return tracking.open_folder(f"runs/{run_id}")


@contextlib.contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Let one process at a time train the run of `folder`: the worker of a killed sweep may live slightly longer. The
    lock is released when its process ends."""
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0.2)
    except Timeout:
        logger.warning(f"Another process is training the run {folder.name}; waiting for it to end.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def break_lock(folder: Path) -> None:
    """Take the lock of `lock_run` from a process that stands still, and writes nothing more if it ever goes on."""
    (folder / "lock").unlink(missing_ok=True)


def open_run(
    experiment: Trainable,
    place: Place,
    name: str,
    facts: Mapping[str, Any],
    inputs: Mapping[str, str],
    log_more: Callable[[Tracker], None] = lambda tracker: None,
) -> Tracker:
    """Return the run, new (called `name`, if `place` has no name) or resumed, with its parameters, configuration and
    facts, and what `log_more` logs of it."""
    if place.run_id:
        tracker = Tracker.resume(place.run_id)
        if tracker.has_artifact("config.yaml"):  # the last thing written below
            return tracker
    else:
        first = {key: place.tags[key] for key in ("ablate.arm", "ablate.role") if key in place.tags}
        first |= {"ablate.seed": str(experiment.seed), "ablate.status": "running"}  # MLflow keeps their order
        tags = {**first, **place.tags, **pick_shown(facts)}
        tracker = Tracker.start(place.experiment, place.name or name, tags, place.parent)
    flat = experiment.flat()
    tracker.log_params({**shorten_settings(flat, place.tags.get("ablate.arm")), **flat})
    log_more(tracker)
    log_facts(tracker, facts)
    texts = {**plugins.read_copies(experiment.plugins), INPUTS: json.dumps(inputs, indent=1, ensure_ascii=False)}
    for file, text in {**texts, "config.yaml": experiment.to_yaml()}.items():
        tracker.log_text(text, file)
    return tracker


@contextlib.contextmanager
def end_with_error(tracker: Tracker) -> Iterator[None]:
    """Within this context an error ends the run as failed or interrupted, unless it is another process's by now."""
    try:
        yield
    except TakenOverError:
        raise
    except BaseException as error:
        stopped = isinstance(error, (StoreError, KeyboardInterrupt))
        tracker.end("interrupted" if stopped else "failed", describe_error(error))
        raise


def copy_run(experiment: Trainable, url: str, run_id: str) -> str:
    """Copy a run's last checkpoint and its configuration to `url`, and return the folder's address there. Raises
    StoreError."""
    folder, url = run_folder(run_id), f"{url.rstrip('/')}/{run_id}"
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
    with contextlib.suppress(FileNotFoundError):  # a run that goes on may move one just now
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
        stored = dict(iterate_leaves(yaml.safe_load(text)))
        values = {path: stored.get(path, stored.get(f"{path}.kind")) for path in other}
        told = (path if value is None else f"{path} (it has {value})" for path, value in values.items())
        raise AblateError(f"A resumed run keeps its configuration; remove {', '.join(told)}.")
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
    parameters that differ, in the order of their letters, capitals first. A run without an alpha has the word none:
    where numbers are compared, the plot draws a run without a value just above the largest."""
    if "norm.kind" not in flat:  # of another kind, whose settings have the names that the user gave them
        return {"arm": arm}
    kinds = {path.removesuffix(".kind"): kind for path, kind in flat.items() if re.fullmatch(r"\w+\.kind", path)}
    alpha = flat.get("norm.alpha")
    return {**kinds, "alpha": "none" if alpha is None else alpha, "arm": arm, "LR": flat.get("optimizer.lr")}


def describe_error(error: BaseException) -> str:
    """Return the kind and the first line of an error, without the passwords of addresses."""
    text = tracking.redact(str(error)).strip()
    return shorten_values(f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}")


def count_epochs(experiment: Experiment, corpus: Corpus) -> str:
    """Return the number of epochs of the run."""
    trainer = experiment.trainer
    return f"{trainer.max_steps * trainer.batch_size / len(corpus.train):.3g}"


def fingerprint_inputs(experiment: Experiment, corpus: Corpus) -> dict[str, str]:
    """Return input -> SHA-256 for a run of `experiment`, whose sources are pinned. Two runs with a common input of
    different SHA-256 did not train on the same data or from the same model. Raises DataError for a missing file."""
    data, start, align = experiment.data, experiment.warm_start, experiment.align
    settings = format_settings(data.model_dump(mode="json", exclude_defaults=True), {})
    found = {f"data {data.kind} {settings}".rstrip(): corpus.fingerprint} if corpus.fingerprint else {}
    name = getattr(data, "tokenizer", None) or "bytes"
    if name != "bytes" and not name.startswith("bpe-"):  # that is trained on the text
        tokenizer = load_data_tokenizer(data, tracking.cache_folder())
        identity = f"{tokenizer.identity} {tokenizer.end_of_text}"
        found[f"tokenizer {name}"] = hashlib.sha256(identity.encode()).hexdigest()
    if start and start.donor and start.sha256:
        found[f"warm_start.from {start.donor}"] = start.sha256
    if align and align.reward and align.reward_sha256:
        found[f"align.reward {align.reward}"] = align.reward_sha256
    if experiment.evaluation.tasks and experiment.evaluation.task_data:
        folder = Path(experiment.evaluation.task_data).expanduser()
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        found[f"evaluation.task_data {folder}"] = fingerprint_files(files, tracking.cache_folder())
    return {tracking.redact(name): digest for name, digest in found.items()}


def list_changed_inputs(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return 'name: SHA-256 old -> new' for each input whose hash has changed."""
    changed = [name for name, digest in now.items() if before.get(name, digest) != digest]
    return [f"{name[:200]}: SHA-256 {before[name]} -> {now[name]}" for name in changed]


_NO_MEMORY = re.compile(
    r"can't allocate memory|out of memory|(CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED"
    r"|CUBLAS_STATUS_NOT_INITIALIZED when calling `?cublas\w*Create"
)
"""In the message of a plain RuntimeError: of the CPU's allocator, of a CUDA context, of NCCL, and of libraries that
allocate their own workspace."""


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Raise errors of Lightning and torch within this context as ours: DataError, OutOfMemory, and KeyboardInterrupt
    for the SystemExit that Lightning makes of Ctrl-C."""
    try:
        yield
    except DataError as error:
        # the message of one out of a worker process has its whole traceback
        raise DataError(str(error).rpartition(f"{DataError.__qualname__}: ")[2].strip()) from error
    except SystemExit:
        raise KeyboardInterrupt from None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and not _NO_MEMORY.search(str(error)):
            raise
        raise OutOfMemory(f"Out of memory: {describe_error(error)}") from error
