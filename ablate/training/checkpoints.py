"""Checkpoints: written whole or not at all, verified before they are loaded, exact in what they restore."""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from lightning.pytorch import Callback, LightningModule, Trainer

from ablate import ranks
from ablate.errors import StoreError
from ablate.tracking import Tracker

CHECKPOINT = "last.ckpt"
PREVIOUS = "previous.ckpt"  # the one before it, while the run goes on


@dataclass(frozen=True)
class Earlier:
    """How far a run has got."""

    updates: int = 0
    """Optimizer updates made."""
    validations: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Updates -> metrics of the validation after them."""


def newest(folder: Path) -> tuple[Path, Earlier] | None:
    """The checkpoint in `folder` to go on from, and how far its run had got; None where there is none that is whole.

    A damaged one is set aside with a message, and the one before it is taken.
    """
    for file in [file for name in (CHECKPOINT, PREVIOUS) if (file := folder / name).exists()]:
        try:
            return file, _read(file)
        except MemoryError:  # nothing is wrong with the file
            raise
        except Exception as error:
            aside = file.with_suffix(".damaged")
            os.replace(file, aside)
            way_on = (
                "the one before it is used" if (folder / PREVIOUS).exists() else "the run starts from its beginning"
            )
            print(f"The checkpoint {file} is damaged ({error}). It is now {aside.name}; {way_on}.")
    return None


def _read(file: Path) -> Earlier:
    """How far the run had got that wrote `file`."""
    content = load(file)
    return Earlier(int(content["global_step"]), content["callbacks"]["Validations"]["history"])


def load(file: Path) -> dict[str, Any]:
    """What is in a checkpoint. Every byte is checked against the sums in it, which torch does not; raises whatever is
    wrong with it."""
    with zipfile.ZipFile(file) as archive:
        if (part := archive.testzip()) is not None:
            raise ValueError(f"the checksum of {part} is wrong")
    content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return content


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

    The file is written beside and moved into place when it is on the disk; the one before stays as `previous.ckpt`, so
    that a process that is killed, or a machine that stops, at any moment leaves one to go on from. It stands after the
    callbacks whose state it stores.
    """

    def __init__(self, folder: Path, tracker: Tracker | None) -> None:
        self.file, self.tracker = folder / CHECKPOINT, tracker
        self._random: torch.Tensor | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"random": torch.get_rng_state(), "unsent": self.tracker.unsent if self.tracker else []}

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
        """Writes the checkpoint. Metrics up to here are sent first, what cannot be sent is in it: a continued run
        misses none."""
        if self.tracker:
            self.tracker.flush()
        part = self.file.with_suffix(".part")
        try:
            trainer.save_checkpoint(part)
            ranks.first(lambda: self._move(part))
        except OSError as error:
            part.unlink(missing_ok=True)
            raise StoreError(
                f"The checkpoint {self.file} cannot be written: {error.strerror or error}. "
                "Make room, or move the store to another disk and set ABLATE_STORE to it."
            ) from None

    def _move(self, part: Path) -> None:
        """`part` becomes the last checkpoint, and that the one before."""
        _sync(part)
        if self.file.exists():
            os.replace(self.file, self.file.with_name(PREVIOUS))
        os.replace(part, self.file)
        _sync(self.file.parent)


def _sync(path: Path) -> None:
    """Returns when a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
