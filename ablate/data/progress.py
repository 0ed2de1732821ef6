"""The progress of a long preparation: a bar on a terminal, otherwise occasional lines; nothing for a short one, or if
Ablate's log at level INFO is not shown."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

AFTER, EVERY = 2.0, 15.0
"""Seconds until a bar or the first line is shown, and between two lines."""


@contextlib.contextmanager
def show_progress(what: str, total: int | None, unit: str = "tokens") -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of completed items, of `total` if that is known. Writes to stderr."""
    begin = time.monotonic()
    shown = begin + AFTER - EVERY
    of = f" of {total:,}" if total is not None else ""
    with contextlib.ExitStack() as stack:
        bar: Callable[[int], None] | None = None

        def advance(done: int) -> None:
            nonlocal bar, shown
            now = time.monotonic()
            if bar is not None:
                bar(done)
            elif now - begin >= AFTER and sys.stderr.isatty() and logger.isEnabledFor(logging.INFO):
                bar = stack.enter_context(_show_bar(what, total, unit))
            elif now - shown >= EVERY:
                shown = now
                logger.info(f"{what}: {done:,}{of} {unit}")

        yield advance


@contextlib.contextmanager
def _show_bar(what: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    count = TextColumn("{task.completed:,}" + (" of {task.total:,}" if total is not None else "") + f" {unit}")
    columns = TextColumn("{task.description}"), BarColumn(), count, TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(escape(what), total=total)
        yield lambda done: shown.update(task, completed=done)
