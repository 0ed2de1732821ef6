"""Checkpoints: written whole or not at all, verified before they are loaded, exact in what they restore."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ablate import ranks
from ablate.errors import StoreError
from ablate.tracking import Tracker

CHECKPOINT = "last.ckpt"


@dataclass(frozen=True)
class Earlier:
    """How far a run has got."""

    updates: int = 0
    """Optimizer updates made."""
    validations: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Updates -> metrics of the validation after them."""


def earlier_in(file: Path) -> Earlier | None:
    """How far the run had got that wrote a checkpoint; None where there is none that can be read. A damaged one is set
    aside, so that training starts anew."""
    if not file.exists():
        return None
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
        return Earlier(int(content["global_step"]), content["callbacks"]["Validations"]["history"])
    except Exception as error:
        aside = file.with_suffix(".damaged")
        os.replace(file, aside)
        print(
            f"The checkpoint {file} cannot be read ({error}). It is now {aside.name}; "
            "the run starts from its beginning."
        )
        return None


class Checkpoint(Callback):
    """Keeps the state after the last validation in `folder/last.ckpt`: weights, optimizer, schedule, random state,
    counters.

    The file is written beside and moved into place, so that a killed process leaves the one before. It stands after the
    callbacks whose state it stores.
    """

    def __init__(self, folder: Path, tracker: Tracker | None) -> None:
        self.file, self.tracker = folder / CHECKPOINT, tracker
        self._random: torch.Tensor | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"random": torch.get_rng_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._random = state_dict["random"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._random is not None:
            torch.set_rng_state(self._random)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Writes the checkpoint; metrics up to here are sent first, so that a continued run misses none."""
        if self.tracker:
            self.tracker.flush()
        part = self.file.with_suffix(".part")
        try:
            trainer.save_checkpoint(part)
            ranks.first(lambda: os.replace(part, self.file))
        except OSError as error:
            part.unlink(missing_ok=True)
            raise StoreError(
                f"The checkpoint {self.file} cannot be written: {error.strerror or error}. "
                "Make room, or move the store to another disk and set ABLATE_STORE to it."
            ) from None
