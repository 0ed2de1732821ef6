"""Train one experiment interactively: show progress, and handle Ctrl-C without losing work."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ablate import tracking
from ablate.distributed import groups, ranks, slurm
from ablate.distributed.signals import handle_signals
from ablate.experiment.tree import Experiment
from ablate.training.procedures import Hooks, Place, Result
from ablate.training.shown import RunDisplay
from ablate.training.train import choose_procedure, train

if TYPE_CHECKING:
    from rich.console import Console

    from ablate.training.checkpoints import Earlier

STOPPING = (
    "Stopping: finishing the current update or validation and writing a checkpoint. Ctrl-C again stops at once; the "
    "run can then be resumed from its last validation."
)
STOPPING_WITHOUT_CHECKPOINT = (
    "Stopping after the current update. An alignment has no checkpoints: resumed, it starts from the beginning. "
    "Ctrl-C again stops at once."
)


def train_in_foreground(experiment: Experiment, console: Console, run_id: str | None = None) -> Result:
    """Train with a progress bar on `console`, or with occasional lines if it is not a terminal. Ctrl-C writes a
    checkpoint and ends the run as interrupted; a second Ctrl-C, and one before the first update, stops at once (a group
    of processes ends in order).
    """
    procedure, place = choose_procedure(experiment), Place(run_id=run_id)
    display = RunDisplay(console, experiment)
    run_ids: list[str] = []

    def started(run: str, text: str, before: Earlier) -> None:
        stop.training = True
        slurm.remember(tracking.open_store(), run)
        run_ids.append(run)
        display.show_start(run, text, before)
        if run_id and not before.updates and procedure.resumes:
            display.say("the run has no complete checkpoint and starts from the beginning")

    def validated(step: int, metrics: Mapping[str, float]) -> bool:
        display.show_validation(step, metrics)
        return True

    stopping = STOPPING if procedure.resumes else STOPPING_WITHOUT_CHECKPOINT
    with display.show(), _StopSignals(stopping, display.say) as stop:
        hooks = Hooks(started, display.progress.advance, validated, lambda: bool(stop.signals))
        try:
            result = train(experiment, place, hooks, procedure)
        except ranks.Lost as error:
            again = f" Continue with: {groups.describe_command()} train --resume {run_ids[0]}" if run_ids else ""
            raise ranks.Lost(f"{error}{again}") from None
    display.show_end(result, place)
    if result.status == "interrupted":
        display.say(f"Continue with: {groups.describe_command()} train --resume {result.run_id}")
        if message := slurm.requeue(stop.signals):
            display.say(message)
    return result


class _StopSignals:
    """Records the signals that request a stop; if stopping at once loses nothing, a signal raises KeyboardInterrupt
    instead."""

    def __init__(self, text: str, note: Callable[[str], None]) -> None:
        self.text, self.note = text, note
        self.training = False
        self.signals: list[int] = []
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> _StopSignals:
        self._ending.enter_context(handle_signals(self._stop))
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def _stop(self, number: int, frame: object) -> None:
        # a closed terminal and `timeout` send theirs twice; torchrun passes on what has reached us
        at_once = not self.training or (self.signals and number == signal.SIGINT)
        if at_once and ranks.world_size() == 1:
            raise KeyboardInterrupt
        self.signals.append(number)
        if len(self.signals) == 1:
            # in a thread of its own: the signal may have come while a line is written, which nothing may interrupt
            telling = threading.Thread(target=self.note, args=(self.text,))
            telling.start()
            self._ending.callback(telling.join)
