"""The place of a run's log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LogPlace:
    """The place of a run's log."""

    folder: Path
    """The folder of all logs, `mlruns/logs`."""
    run_id: str
    """The run's id in MLflow."""
    name: str
    """The run's name there."""
    updates: int
    """The updates that the run has made: what a log has of later ones was lost with the process that made them."""
