"""`trainer.profiler`: Lightning's profilers, and what they have measured as artifacts of the run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.config.errors import StoreError
from ablate.tracking.tracker import Tracker

if TYPE_CHECKING:
    from lightning.pytorch.profilers import Profiler

logger = logging.getLogger(__name__)

FOLDER = "profile"
"""The folder of the output, in that of the run and among its artifacts."""


def build_profiler(kind: str | None, folder: Path) -> Profiler | None:
    """Return Lightning's profiler simple, advanced or pytorch, which writes into a folder below that of the run; None
    for None."""
    if kind is None:
        return None
    from lightning.pytorch import profilers

    classes = {
        "simple": profilers.SimpleProfiler,
        "advanced": profilers.AdvancedProfiler,
        "pytorch": profilers.PyTorchProfiler,
    }
    return classes[kind](dirpath=folder / FOLDER, filename=kind)


def describe_profile(trainer: Any) -> None:
    """Have the profiler of a Trainer write its report."""
    trainer.profiler.describe()


def publish_profile(kind: str | None, folder: Path, tracker: Tracker) -> None:
    """Store what the profiler has written as artifacts of the run; a store that does not take it costs no run."""
    if kind is None:
        return
    try:
        for file in sorted((folder / FOLDER).glob("*")):
            tracker.log_file(file, FOLDER)
    except StoreError as error:
        logger.warning(f"\nThe profile stays in {folder / FOLDER}. {error}")
