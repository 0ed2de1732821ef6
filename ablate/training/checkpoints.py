"""Checkpoints: written whole or not at all, verified before they are loaded, exact in what they restore."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from ablate.config.errors import AblateError, ConfigError, Problem
from ablate.config.merging import iterate_leaves
from ablate.experiment.trainer import HOW
from ablate.experiment.tree import Experiment
from ablate.parallel import sharded
from ablate.training.runs import CHECKPOINT

logger = logging.getLogger(__name__)

PREVIOUS = "previous.ckpt"  # the one before it, while the run goes on
PART = "last.part"  # one that is being written


@dataclass(frozen=True)
class Earlier:
    """The progress of a run."""

    updates: int = 0
    """Optimizer updates made."""
    validations: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Updates -> metrics of the validation after them."""
    experiment: Mapping[str, Any] = field(default_factory=dict)
    """What was trained, as {dotted path: value}."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The shapes of the weights by their names; empty where ranks have shards of them."""

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError, which says what differs, where it is of another experiment than this one."""
        now, before = experiment.flat(), self.experiment
        problems = [
            Problem(key, f"the checkpoint is of a run with {before[key]!r}", now[key])
            for key in now
            if key in before and key not in HOW and before[key] != now[key]
        ]
        if problems:
            raise ConfigError(problems, "the checkpoint that was to be gone on from")

    def check_weights(self, file: Path, model: Mapping[str, Tensor]) -> None:
        """Raise AblateError where the checkpoint `file`, whose progress it is, does not hold the weights of `model`."""
        for name, value in model.items() if self.shapes else ():
            if self.shapes.get(name) != value.shape:
                here = "missing" if name not in self.shapes else f"{list(self.shapes[name])}"
                raise AblateError(
                    f"The checkpoint {file} does not hold the weights of its run: {name} is {here}, and "
                    f"{list(value.shape)} in the model. Move it away: the run goes on from the one before it, if that "
                    "is there, or from its beginning."
                )


def find_newest(folder: Path) -> tuple[Path, Earlier] | None:
    """Return the checkpoint in `folder` to go on from, and how far its run had got; None where there is none that is
    whole.

    A damaged one is set aside with a message, and the one before it is taken.
    """
    part = folder / PART
    if part.is_dir() and sharded.is_whole(part):  # its process ended between writing and moving it
        move_into_place(part, folder)
    for file in [file for name in (CHECKPOINT, PREVIOUS) if (file := folder / name).exists()]:
        try:
            return file, _read(file)
        except MemoryError:  # nothing is wrong with the file
            raise
        except Exception as error:
            aside = file.with_suffix(".damaged")
            remove(aside)
            os.replace(file, aside)
            way_on = (
                "the one before it is used" if (folder / PREVIOUS).exists() else "the run starts from its beginning"
            )
            logger.warning(f"The checkpoint {file} is damaged ({error}). It is now {aside.name}; {way_on}.")
    return None


def _read(file: Path) -> Earlier:
    """Return the progress of the run that wrote `file`."""
    content = load(file)
    experiment, shapes = dict(iterate_leaves(content.get("experiment", {}))), {}
    if not file.is_dir():
        if missing := {"optimizer_states", "lr_schedulers", "loops"} - content.keys():
            raise KeyError(min(missing))
        if problem := find_misshapen(content["state_dict"]):
            raise ValueError(problem)
        shapes = {name: tuple(value.shape) for name, value in content["state_dict"].items()}
    return Earlier(int(content["global_step"]), content["callbacks"]["Validations"]["history"], experiment, shapes)


def load(file: Path) -> dict[str, Any]:
    """Return the content of a checkpoint; of a folder of shards all but the shards. Every byte is checked against the
    sums in it, which torch does not; raises whatever is wrong with it."""
    if file.is_dir():
        sharded.verify(file)
        return sharded.read(file)
    with zipfile.ZipFile(file) as archive:
        if (part := archive.testzip()) is not None:
            raise ValueError(f"the checksum of {part} is wrong")
    content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return content


def find_misshapen(weights: object) -> str:
    """Return what is wrong with `weights` where they are not plain tensors by their names; '' where they are."""
    if not isinstance(weights, Mapping):
        return f"they are no tensors by their names but of the type {type(weights).__name__}"
    for name, value in weights.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            return f"{name!r} is of the type {type(value).__name__}"
        if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized:
            return f"{name} is no plain tensor"
        if value.untyped_storage().nbytes() < value.numel() * value.element_size():  # one number, shown as many
            return f"{name} is {list(value.shape)}, and the file has fewer numbers"
    return ""


def move_into_place(part: Path, folder: Path) -> None:
    """`part`, which is written, becomes the last checkpoint in `folder`, and that the one before."""
    last, previous = folder / CHECKPOINT, folder / PREVIOUS
    if last.exists():
        if last.is_dir() or previous.is_dir():  # which nothing can take the place of
            remove(previous)
        os.replace(last, previous)
    os.replace(part, last)
    sync_to_disk(folder)


def remove(path: Path) -> None:
    """Delete a checkpoint, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """One process at a time trains the run of `folder`: the worker of a sweep that was killed may live a moment longer.
    The lock goes with the process that holds it."""
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0.2)
    except Timeout:
        logger.warning(f"Another process is at the run {folder.name}; waiting for it to end.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
