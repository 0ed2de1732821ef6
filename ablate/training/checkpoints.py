"""Checkpoints: written whole or not at all, verified before they are loaded, exact in what they restore."""

from __future__ import annotations

import contextlib
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from lightning.pytorch import Callback, LightningModule, Trainer

from ablate.config.errors import ConfigError, Problem, StoreError
from ablate.config.merging import leaves
from ablate.distributed import ranks
from ablate.experiment.trainer import HOW
from ablate.experiment.tree import Experiment
from ablate.parallel import sharded
from ablate.tracking.tracker import Tracker

CHECKPOINT = "last.ckpt"
PREVIOUS = "previous.ckpt"  # the one before it, while the run goes on
PART = "last.part"  # one that is being written


@dataclass(frozen=True)
class Earlier:
    """How far a run has got."""

    updates: int = 0
    """Optimizer updates made."""
    validations: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Updates -> metrics of the validation after them."""
    experiment: Mapping[str, Any] = field(default_factory=dict)
    """What was trained, as {dotted path: value}."""

    def check(self, experiment: Experiment) -> None:
        """Raises ConfigError, which says what differs, where it is of another experiment than this one."""
        now, before = experiment.flat(), self.experiment
        problems = [
            Problem(key, f"the checkpoint is of a run with {before[key]!r}", now[key])
            for key in now
            if key in before and key not in HOW and before[key] != now[key]
        ]
        if problems:
            raise ConfigError(problems, "the checkpoint that was to be gone on from")


def newest(folder: Path) -> tuple[Path, Earlier] | None:
    """The checkpoint in `folder` to go on from, and how far its run had got; None where there is none that is whole.

    A damaged one is set aside with a message, and the one before it is taken.
    """
    part = folder / PART
    if part.is_dir() and sharded.whole(part):  # its process ended between writing and moving it
        move(part, folder)
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
            print(f"The checkpoint {file} is damaged ({error}). It is now {aside.name}; {way_on}.")
    return None


def _read(file: Path) -> Earlier:
    """How far the run had got that wrote `file`."""
    content = load(file)
    experiment = dict(leaves(content.get("experiment", {})))
    return Earlier(int(content["global_step"]), content["callbacks"]["Validations"]["history"], experiment)


def load(file: Path) -> dict[str, Any]:
    """What is in a checkpoint; of a folder of shards all but the shards. Every byte is checked against the sums in it,
    which torch does not; raises whatever is wrong with it."""
    if file.is_dir():
        sharded.verify(file)
        return sharded.read(file)
    with zipfile.ZipFile(file) as archive:
        if (part := archive.testzip()) is not None:
            raise ValueError(f"the checksum of {part} is wrong")
    content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return content


def move(part: Path, folder: Path) -> None:
    """`part`, which is written, becomes the last checkpoint in `folder`, and that the one before."""
    last, previous = folder / CHECKPOINT, folder / PREVIOUS
    if last.exists():
        if last.is_dir() or previous.is_dir():  # which nothing can take the place of
            remove(previous)
        os.replace(last, previous)
    os.replace(part, last)
    _sync(folder)


def remove(path: Path) -> None:
    """Deletes a checkpoint, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time trains the run of `folder`: the worker of a sweep that was killed may live a moment longer.
    The lock goes with the process that holds it."""
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0.2)
    except Timeout:
        print(f"Another process is at the run {folder.name}; waiting for it to end.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class Checkpoint(Callback):
    """Keeps the state after the last validation in `folder/last.ckpt`: weights, optimizer, schedule, random state,
    counters.

    It is written beside and moved into place when it is on the disk; the one before stays as `previous.ckpt`, so that
    a process that is killed, or a machine that stops, at any moment leaves one to go on from. One process writes a
    file; where the model is sharded, the ranks write a folder while training goes on, which is moved before the next
    one is begun and when the run ends. It stands after the callbacks whose state it stores.
    """

    def __init__(self, folder: Path, tracker: Tracker | None) -> None:
        self.folder, self.tracker = folder, tracker
        self._random: torch.Tensor | None = None
        self._begun = False

    def state_dict(self) -> dict[str, Any]:
        unsent = self.tracker.unsent if self.tracker else []
        return {"random": torch.get_rng_state(), "unsent": unsent}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._random = state_dict["random"]
        if self.tracker:
            self.tracker.keep(state_dict.get("unsent", []))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._random is not None:
            torch.set_rng_state(self._random)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Writes the checkpoint, or begins to. Metrics up to here are sent first, what cannot be sent is in it: a
        continued run misses none."""
        if self.tracker:
            self.tracker.flush()
        self.finish(trainer)
        with self._full_disk():
            trainer.save_checkpoint(self.folder / PART)
        self._begun = True
        if not hasattr(trainer.strategy, "finish"):
            self.finish(trainer)

    def finish(self, trainer: Trainer) -> None:
        """Returns when what `save` has begun is the last checkpoint."""
        if not self._begun:
            return
        self._begun = False
        with self._full_disk():
            if finish := getattr(trainer.strategy, "finish", None):
                finish()
            ranks.first(self._move)

    def _move(self) -> None:
        part = self.folder / PART
        _sync(part)
        move(part, self.folder)

    @contextlib.contextmanager
    def _full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError):
                remove(self.folder / PART)
            raise StoreError(
                f"The checkpoint {self.folder / CHECKPOINT} cannot be written: {error.strerror or error}. "
                "Make room, or move the store to another disk and set ABLATE_STORE to it."
            ) from None


def _sync(path: Path) -> None:
    """Returns when a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
