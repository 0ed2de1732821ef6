"""The progress of one run: a bar on a terminal, otherwise occasional lines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ablate.config.formatting import format_count, format_duration
from ablate.config.logs import print_wrapped
from ablate.experiment.tree import Experiment
from ablate.models.attention_config import WithAttention
from ablate.optim.parametrizations import Scaled

if TYPE_CHECKING:
    from rich.console import Console

SHORTEST, LONGEST = 15.0, 600.0
"""Shortest and approximate longest time between two lines, in seconds."""
PART = 0.02
"""The share of the run between two lines, unless it takes longer than `LONGEST`."""


def describe_run(experiment: Experiment, run_id: str | None = None) -> str:
    """Return the first lines, which are printed before anything that takes seconds: imports and data. `run_id`: of a
    run that goes on."""
    chosen, stack = experiment.parametrization, experiment.model.stack()
    scaled = f", {chosen.describe_scale(stack)}" if isinstance(chosen, Scaled) else ""
    what = f"run {run_id}, resumed" if run_id else f"{experiment.model.title}, norm {experiment.norm.kind}"
    if isinstance(experiment.model, WithAttention) and not run_id:
        options = experiment.model.attention.find_set()
        what += "".join(f", attention.{name}={value}" for name, value in options.items())
    first = (
        f"training {what}, on {experiment.data.kind}: {experiment.trainer.max_steps:,} updates of "
        f"{experiment.items_per_update:,} {experiment.unit}, learning rate {experiment.optimizer.lr:g}{scaled}, "
        f"seed {experiment.seed}"
    )
    return "\n".join([first, *experiment.list_cautions()])


class RunProgress:
    """Shows the update, the loss, the rate and the remaining time. The rate is the mean over all updates since the
    first reported one, including validations.

    Args:
        console: where to; a bar if it is a terminal.
        clock: the time in seconds.
    """

    def __init__(self, console: Console, experiment: Experiment, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self.clock = console, clock
        self.total, self.items, self.unit = experiment.trainer.max_steps, experiment.items_per_update, experiment.unit
        self._first: tuple[float, int] | None = None  # the time, after how many updates
        self._said: tuple[float, int] | None = None  # those of the last line
        self._update_bar: Callable[[int, str], None] | None = None

    @contextlib.contextmanager
    def show(self) -> Iterator[None]:
        """Show the bar within this context, on a terminal."""
        if not self.console.is_terminal:
            yield
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = TextColumn("update"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}")
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task("train", total=self.total, state="")
            self._update_bar = lambda step, state: bar.update(task, completed=step, state=state)
            yield

    def begin_at(self, step: int) -> None:
        """Show that `step` updates were made earlier."""
        if self._update_bar:
            self._update_bar(step, "")

    def advance(self, step: int, loss: float) -> None:
        """Show that `step` updates are complete, with the training loss of the last."""
        now = self.clock()
        self._first = self._first or (now, step)
        state = f"loss {loss:.4f}{self._describe_rate(now, step)}"
        if self._update_bar:
            self._update_bar(step, state)
        elif self._is_due(now, step):
            self._said = now, step
            print_wrapped(self.console, f"update {step:,}/{self.total:,}: {state}")

    def _is_due(self, now: float, step: int) -> bool:
        """Return whether a line is due: the first, then about fifty in a run, or one every ten minutes."""
        if self._said is None:
            return True
        seconds, updates = now - self._said[0], step - self._said[1]
        return seconds >= SHORTEST and (updates >= PART * self.total or seconds >= LONGEST)

    def _describe_rate(self, now: float, step: int) -> str:
        assert self._first is not None
        seconds, updates = now - self._first[0], step - self._first[1]
        if updates < 1 or seconds <= 0:
            return ""
        left = (self.total - step) * seconds / updates
        return f", {format_count(updates * self.items / seconds)} {self.unit}/s, {format_duration(left)} left"
