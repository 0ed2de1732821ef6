"""When workers are not replaced any more."""

from __future__ import annotations

from pathlib import Path

from ablate.config.errors import AblateError
from ablate.scheduler.executors.worker_log import check_space

MOST = 3  # so many workers in a row that end before they took a trial end the sweep
STARTING = 60.0  # seconds within which a worker that ends counts as one that could not start


class Crashes:
    """Counts the workers in a row that ended before they took a trial."""

    def __init__(self) -> None:
        self._count = 0

    def reset(self) -> None:
        """Begin to count anew: a worker was killed, or worked for a while."""
        self._count = 0

    def add(self, seconds: float, how: str, log: Path) -> None:
        """Count a worker that crashed `seconds` after it was started. Raises AblateError if none can start: `how` says
        how each ends; or if the disk is full."""
        check_space(log)
        self._count = self._count + 1 if seconds < STARTING else 0
        if self._count >= MOST:
            raise AblateError(f"No worker can start: each {how}. See {log}")
