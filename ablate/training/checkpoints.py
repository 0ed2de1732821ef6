"""Checkpoints: written completely or not at all, verified before loading, restored exactly."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate.config.merging import iterate_leaves
from ablate.parallel import sharded
from ablate.training.procedures import Earlier
from ablate.training.runs import CHECKPOINT

logger = logging.getLogger(__name__)

PREVIOUS = "previous.ckpt"  # the one before it, while the run goes on
PART = "last.part"  # one that is being written


def find_newest(folder: Path) -> tuple[Path, Earlier] | None:
    """Return the checkpoint in `folder` to resume from, and the progress of its run; None if there is no complete one.
    A damaged one is renamed with a message, and the previous one is used.
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
            way_on = "the previous one is used" if (folder / PREVIOUS).exists() else "the run starts from the beginning"
            logger.warning(f"The checkpoint {file} is damaged ({error}). It is now {aside.name}; {way_on}.")
    return None


def _read(file: Path) -> Earlier:
    """Return the progress of the run that wrote `file`."""
    content = load(file)
    if not file.is_dir() and (missing := {"optimizer_states", "lr_schedulers", "loops"} - content.keys()):
        raise KeyError(min(missing))
    experiment = dict(iterate_leaves(content["experiment"]))
    return Earlier(int(content["global_step"]), content["callbacks"]["Validations"]["history"], experiment)


def load(file: Path) -> dict[str, Any]:
    """Return the content of a checkpoint; for a folder of shards, everything except the shards. Every byte is checked
    against its checksums, which torch does not do; raises any error of reading it."""
    if file.is_dir():
        sharded.verify(file)
        return sharded.read(file)
    with zipfile.ZipFile(file) as archive:
        if (part := archive.testzip()) is not None:
            raise ValueError(f"the checksum of {part} is wrong")
    content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return content


def hash_weights(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of weights: names, types, shapes and bytes, however they are stored."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def move_into_place(part: Path, folder: Path) -> None:
    """Make the written `part` the last checkpoint in `folder`, and the last one the previous one."""
    last, previous = folder / CHECKPOINT, folder / PREVIOUS
    if last.exists():
        if last.is_dir() or previous.is_dir():  # which cannot be replaced
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


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
