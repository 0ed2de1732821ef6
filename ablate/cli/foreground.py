"""Stopping a run that a person waits for, without losing work."""

from __future__ import annotations

import contextlib
import signal
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from ablate import tracking
from ablate.config.logs import print_wrapped
from ablate.distributed import groups, ranks, slurm
from ablate.distributed.signals import handle_signals
from ablate.experiment.tree import Experiment
from ablate.training.procedures import Earlier, Hooks, Result
from ablate.training.train import choose_procedure

if TYPE_CHECKING:
    from rich.console import Console


STOPPING = (
    "Stopping: finishing the current update or validation and writing a checkpoint. Ctrl-C again stops at once; the "
    "run can then be resumed from its last validation."
)
STOPPING_WITHOUT_CHECKPOINT = (
    "Stopping after the current update. An alignment has no checkpoints: resumed, it starts from the beginning. "
    "Ctrl-C again stops at once."
)


class Foreground:
    """Within this context Ctrl-C, or another signal, writes a checkpoint of the run that has these `hooks` and ends it
    as interrupted. A second Ctrl-C, and one before the first update, raises KeyboardInterrupt (a group of processes
    ends in order).

    Args:
        experiment: what the run trains.
        console: shows that the run stops, and how to continue it.
    """

    def __init__(self, experiment: Experiment, console: Console) -> None:
        self.console = console
        self.text = STOPPING if choose_procedure(experiment).resumes else STOPPING_WITHOUT_CHECKPOINT
        self.hooks = Hooks(started=self._start, asked_to_stop=lambda: bool(self.signals))
        self.signals: list[int] = []
        self._run_id = ""  # once it trains
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> Foreground:
        self._ending.enter_context(handle_signals(self._stop))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ending.close()
        if isinstance(error, ranks.Lost) and self._run_id:
            raise ranks.Lost(f"{error} {self._describe_continuing()}") from None

    def explain(self, result: Result) -> int:
        """Print how to continue an interrupted run, and return the exit status."""
        if result.status != "interrupted":
            return 0
        print_wrapped(self.console, self._describe_continuing())
        if message := slurm.requeue(self.signals):
            print_wrapped(self.console, message)
        return 130

    def _describe_continuing(self) -> str:
        return f"Continue with: {groups.describe_command()} train --resume {self._run_id}"

    def _start(self, run_id: str, text: str, before: Earlier) -> None:
        slurm.remember(tracking.open_store(), run_id)
        self._run_id = run_id

    def _stop(self, number: int, frame: object) -> None:
        # a closed terminal and `timeout` send theirs twice; torchrun passes on what has reached us
        at_once = not self._run_id or (self.signals and number == signal.SIGINT)
        if at_once and ranks.world_size() == 1:
            raise KeyboardInterrupt
        self.signals.append(number)
        if len(self.signals) == 1:
            # in a thread of its own: the signal may have come while a line is written, which nothing may interrupt
            telling = threading.Thread(target=print_wrapped, args=(self.console, self.text))
            telling.start()
            self._ending.callback(telling.join)
