"""The display of a running sweep: a live table on a terminal, one line per event elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Hashable
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from ablate.config.formatting import count_noun, format_duration, join_words
from ablate.config.logs import print_wrapped
from ablate.sweeps.spec.sweep import Sweep

_NUMBERS = re.compile(r" \([^)]*\)")  # in a verdict


def describe_sweep(spec: Sweep, workers: int) -> str:
    """Return the first lines, which are printed before anything that takes seconds: imports, data, the storage."""
    base, points = spec.base(next(iter(spec.all_arms))), {cell.shared for cell in spec.cells.values()}
    arms = count_noun(len(spec.own_arms), "arm") + (f" at {count_noun(len(points), 'point')}" if points else "")
    first = f"sweep {spec.name}: {arms}, runs of {base.describe_length()}, {workers} at a time"
    return "\n".join(
        dict.fromkeys([first, *(text for arm in spec.all_arms for text in spec.base(arm).list_cautions())])
    )


@dataclass
class Running:
    """A trial that is being trained."""

    title: str
    """Arm and number."""
    params: str
    max_steps: int
    """0: unknown."""
    step: int = 0
    loss: float | None = None
    since: float = field(default_factory=time.monotonic)

    @property
    def place(self) -> str:
        """How far it is: update 20/100."""
        return f"update {self.step:,}/{self.max_steps:,}" if self.max_steps else f"step {self.step:,}"


EVERY = 600.0
"""Seconds between two lines about running trials if there is no live table."""


class Display:
    """Shows a sweep with `total` trials, of which `done` are finished.

    Args:
        console: where to; live if it is a terminal.
        metric: the name of the objective.
        workers: trials at a time, for the time left.
    """

    def __init__(self, console: Console, metric: str, workers: int) -> None:
        self.console, self.metric, self.workers = console, metric, workers
        self.total = self.done = 0
        self.running: dict[Hashable, Running] = {}
        self.verdict = ""
        """The verdict on fresh seeds so far, in one line."""
        self.best = ""
        """The best trial of each search so far, which is optimistic: shown last."""
        self._last = ""  # line that was printed
        self._seconds: list[float] = []
        self._noted = time.monotonic()  # the last line
        self._progress = Progress(
            TextColumn("[bold]trials"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self._task = self._progress.add_task("trials", total=0, completed=0, left="")
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def note(self, text: str) -> None:
        """Print a permanent line."""
        self._noted, self._last = time.monotonic(), text
        print_wrapped(self.console, text)

    def show_verdict(self, text: str) -> None:
        """Show the verdict so far; in a log, print a line if more than its numbers has changed."""
        before, self.verdict = self.verdict, text
        if self._is_told() and not self._live and _NUMBERS.sub("", text) != _NUMBERS.sub("", before):
            self.note(text)
        self.refresh()

    def close(self) -> None:
        """Print the verdict as the last line, if there is one."""
        if self._is_told() and self._last != self.verdict:
            self.note(self.verdict)

    def _is_told(self) -> bool:
        return bool(self.verdict) and not self.verdict.startswith("No verdict")

    def show_start(self, key: Hashable, trial: Running) -> None:
        """Show that a trial has started."""
        self.running[key] = trial
        if not self._live:
            self.note(f"{trial.title} started" + (f": {trial.params}" if trial.params else ""))
        self.refresh()

    def show_resumed(self, key: Hashable, step: int) -> None:
        """Show that a trial has loaded its checkpoint of update `step`; 0: none."""
        trial = self.running[key]
        if step and not trial.step:
            trial.step = step
            self.note(f"{trial.title} resumed at {trial.place}")

    def show_progress(self, key: Hashable, step: int, loss: float) -> None:
        """Show that a trial has made `step` updates."""
        self.running[key].step, self.running[key].loss = step, loss
        if not self._live and time.monotonic() - self._noted >= EVERY:
            states = (
                f"{trial.title} at {trial.place}" + ("" if trial.loss is None else f" (loss {trial.loss:.3f})")
                for trial in self.running.values()
            )
            self.note(f"training {join_words(states)}{self._format_left(', about {} left')}")
        self.refresh()

    def show_end(self, key: Hashable, trial: Running, text: str, seconds: float | None) -> None:
        """Show that a trial has ended after `seconds` of training; None if it does not count for the budget."""
        self.running.pop(key, None)
        place = ""
        if seconds is not None:
            self._seconds.append(seconds)
            place = f"[{self.done}/{self.total}] "
        params = f": {trial.params}" if trial.params else ""
        self.note(f"{place}{trial.title} {text}{params}{self._format_left(', about {} left')}")
        self.refresh()

    def left_seconds(self) -> float | None:
        """Return the remaining seconds, estimated from the mean of the finished trials."""
        if not self._seconds:
            return None
        mean = sum(self._seconds) / len(self._seconds)
        spent = sum(min(mean, time.monotonic() - trial.since) for trial in self.running.values())
        return max(0.0, (self.total - self.done) * mean - spent) / self.workers

    def _format_left(self, form: str) -> str:
        seconds = self.left_seconds()
        return "" if seconds is None or self.done >= self.total else form.format(format_duration(seconds))

    def refresh(self) -> None:
        """Redraw the live table."""
        if not self._live:
            return
        self._progress.update(self._task, total=self.total, completed=self.done, left=self._format_left("{} left"))
        table = Table.grid(padding=(0, 2))
        for trial in self.running.values():
            loss = "" if trial.loss is None else f"loss {trial.loss:.3f}"
            cells = (trial.title, trial.place, loss, trial.params)
            table.add_row(*map(Text, cells))  # no markup in a name is read
        best = f"best of each search so far, one seed each (optimistic): {self.best}" if self.best else ""
        rows: list[RenderableType] = [*_wrap(self.verdict, "bold"), self._progress, table, *_wrap(best)]
        self._live.update(Group(*rows))


def _wrap(text: str, style: str = "") -> list[Text]:
    """Return a text that the consoles of the verbs, which wrap nothing, wrap instead of cutting it; none if empty."""
    return [Text(text, style, no_wrap=False, overflow="fold")] if text else []
