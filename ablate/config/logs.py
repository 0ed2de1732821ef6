"""Messages on the terminal: logging to stderr, for the command line and the processes that it starts, and the name
of this program in them."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST = 20
"""Terminals with fewer columns get unwrapped text."""


def wrap_lines(text: str, width: int) -> str:
    """Return `text` with its lines broken between words at `width` columns; continuation lines are indented by two more
    columns. A longer word, such as a path, stays whole."""
    if width < NARROWEST:
        return text
    return "\n".join(_wrap_line(line, width) for line in text.split("\n"))


def _wrap_line(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line.strip(),
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def wrap_for(stream: TextIO, text: str) -> str:
    """Return `text` wrapped to the terminal's width if `stream` is a terminal; unchanged for a file or a pipe."""
    try:
        if not stream.isatty():
            return text
        columns = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # no descriptor of its own, or closed
        columns = shutil.get_terminal_size().columns
    return wrap_lines(text, columns)


def print_wrapped(console: Console, text: str) -> None:
    """Print lines of text: wrapped between words on a terminal, unwrapped in a file or a pipe."""
    shown = wrap_lines(text, console.width) if console.is_terminal else text
    console.print(shown, soft_wrap=True, highlight=False, markup=False, emoji=False)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes messages without prefix to the current `sys.stderr`, which rich replaces while it shows a progress bar."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    def format(self, record: logging.LogRecord) -> str:
        return wrap_for(self.stream, super().format(record))


def open_console(shown: bool = True) -> Console:
    """Return rich's console on stdout, with names as they are; its output is dropped if it is not `shown`.

    A notebook gets plain lines, as a file does: rich would take it for a browser, or by its environment for a terminal.
    """
    from rich.console import Console

    return Console(
        quiet=not shown,
        force_terminal=sys.stdout.isatty(),
        force_jupyter=False,
        soft_wrap=True,
        highlight=False,
        markup=False,
        emoji=False,
    )


@contextlib.contextmanager
def log_where_unheard() -> Iterator[None]:
    """Write Ablate's log messages within this context to stderr, from INFO on, unless the caller's own handlers have
    it."""
    with contextlib.nullcontext() if logging.getLogger("ablate").hasHandlers() else log_to_stderr():
        yield


@contextlib.contextmanager
def silence(*names: str) -> Iterator[None]:
    """Drop messages below errors of the loggers `names` within this context."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def log_to_stderr() -> Iterator[None]:
    """Write Ablate's log messages within this context to stderr, from level INFO."""
    logger, handler = logging.getLogger("ablate"), _StderrHandler()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # or a library's handler of all messages would write it again
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def name_program() -> str:
    """Return "ablate", or the path that it was started by if "ablate" on PATH is another program or missing, as in a
    virtual environment that is not active."""
    started = Path(sys.argv[0])
    if started.name != "ablate" or not started.is_file():  # a notebook, a script, python -m ablate
        return "ablate"
    on_path = shutil.which("ablate")
    return "ablate" if on_path and started.samefile(on_path) else sys.argv[0]
