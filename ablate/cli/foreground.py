"""One experiment trained in front of a person: progress, and Ctrl-C that loses nothing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.distributed import groups, ranks, slurm
from ablate.experiment.tree import Experiment
from ablate.training.procedures import Hooks, Place, Result
from ablate.training.runs import name_run
from ablate.training.train import choose_procedure, train

if TYPE_CHECKING:
    from rich.console import Console

    from ablate.training.checkpoints import Earlier

STOPPING = (
    "Stopping: the update or the validation under way is finished and a checkpoint written. Ctrl-C again stops at "
    "once, and the run goes on from its last validation."
)
STOPPING_WITHOUT_CHECKPOINT = (
    "Stopping after the update under way: an alignment keeps nothing of what it has done so far, and begins again when "
    "it goes on. Ctrl-C again stops at once."
)


def train_in_foreground(experiment: Experiment, console: Console, run_id: str | None = None) -> Result:
    """Train with a progress bar on `console`, or a line per validation where that is no terminal.

    Ctrl-C writes a checkpoint and ends the run as interrupted; a second one, and one before the first update, stops at
    once (a group of processes ends in order).
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    procedure = choose_procedure(experiment)
    bar = Progress(
        TextColumn("update"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"), console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    task = bar.add_task("train", total=experiment.trainer.max_steps, loss="")
    total = experiment.trainer.max_steps
    run_ids: list[str] = []

    def started(run: str, text: str, before: Earlier) -> None:
        stop.training = True
        slurm.remember(tracking.open_store(), run)
        console.print(f"run {run}: {text}", markup=False)
        run_ids.append(run)
        if run_id and not before.updates and procedure.resumes:
            console.print("there is no whole checkpoint of it: it begins again", markup=False)
        if before.updates:
            console.print(f"goes on at update {before.updates}/{total}", markup=False)
            bar.update(task, completed=before.updates)

    def progress(step: int, loss: float) -> None:
        bar.update(task, completed=step, loss=f"loss {loss:.4f}")

    def validated(step: int, metrics: Mapping[str, float]) -> bool:
        shown = ", ".join(f"{key} {value:.4f}" for key, value in metrics.items())
        console.print(f"update {step}/{total}: {shown}", markup=False)
        return True

    stopping = STOPPING if procedure.resumes else STOPPING_WITHOUT_CHECKPOINT
    with bar, _StopSignals(stopping, lambda text: console.print(text, markup=False)) as stop:
        hooks = Hooks(started, progress, validated, lambda: bool(stop.signals))
        try:
            result = train(experiment, Place(run_id=run_id), hooks, procedure)
        except ranks.Lost as error:
            again = f" Go on with: {groups.describe_command()} train --resume {run_ids[0]}" if run_ids else ""
            raise ranks.Lost(f"{error}{again}") from None
    console.print(
        f"{result.status}{f': {result.reason}' if result.reason else ''} after {result.seconds:.1f} s", markup=False
    )
    if result.status == "interrupted":
        console.print(f"Go on with: {groups.describe_command()} train --resume {result.run_id}", markup=False)
        if message := slurm.requeue(stop.signals):
            console.print(message, markup=False)
    else:
        where = f'run "{name_run(experiment)}" of the experiment "{Place.experiment}"'
        console.print(f"In MLflow: {where}. Open it with: ablate ui", markup=False)
    return result


class _StopSignals:
    """The signals that have asked to stop; where nothing is lost by it, they raise KeyboardInterrupt instead."""

    def __init__(self, text: str, note: Callable[[str], None]) -> None:
        self.text, self.note = text, note
        self.training = False
        self.signals: list[int] = []
        self._before: dict[int, Any] = {}
        self._telling: threading.Thread | None = None

    def __enter__(self) -> _StopSignals:
        self._before = {number: signal.signal(number, self._stop) for number in slurm.STOPPING}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._telling:
            self._telling.join()

    def _stop(self, number: int, frame: object) -> None:
        if (self.signals or not self.training) and ranks.world_size() == 1:  # torchrun passes on what has reached us
            raise KeyboardInterrupt
        self.signals.append(number)
        if len(self.signals) == 1:
            # in a thread of its own: the signal may have come while a line is written, which nothing may interrupt
            self._telling = threading.Thread(target=self.note, args=(self.text,))
            self._telling.start()
