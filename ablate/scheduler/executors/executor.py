"""What a place must offer for the workers of a sweep to run there."""

from __future__ import annotations

from typing import Protocol


class Workers(Protocol):
    """The workers of one sweep."""

    count: int
    """The most that work at a time."""
    patience: float
    """Seconds that they are given to write their checkpoints after Ctrl-C."""

    def start(self, count: int) -> None:
        """Start the first `count` of them."""

    def have_work(self) -> bool:
        """Return whether any of them has not come to its end; one that was killed is to be replaced."""

    def is_running(self) -> bool:
        """Return whether any of them has not ended."""

    def read_lines(self) -> list[str]:
        """Return the lines that they have written since the last call."""

    def replace_killed(self) -> list[str]:
        """Replace those that were killed or crashed; return a sentence for each. Raises AblateError with the message of
        one that ended with an error, or if none can start."""

    def stop(self) -> None:
        """Ask all to write their checkpoints and end."""

    def kill(self) -> None:
        """End all at once."""


class Executor(Protocol):
    """Where workers run."""

    def pick_threads(self, workers: int) -> int:
        """Return the threads that each of so many workers computes on, unless the sweep began with another number."""

    def build_workers(self, title: str, url: str, count: int, threads: int) -> Workers:
        """Return `count` workers, not yet started, of the sweep `title` in the storage at `url`."""
