"""Output of the verbs: rich's console, tables, the JSON document, and the command to repeat."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO

from ablate import tracking
from ablate.config.formatting import to_json
from ablate.distributed import groups
from ablate.distributed.signals import ENDING, leave_terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PLAIN = "ablate.plain"  # the name of an error handler of codecs
_ASCII = {"±": "+-", "→": "->", "…": "...", "·": "*"}
_UNLIMITED = 10_000  # columns of a pipe or a file, where lines have the length of their text
_document: TextIO | None = None  # where `print_json` writes while stdout is reserved


def build_console(stderr: bool = False) -> Console:
    """Return rich's console; `main` handles the error if its reader has closed the pipe. A pipe and a file have no
    width, unless COLUMNS sets one."""
    from rich.console import Console

    class Pipe(Console):
        def on_broken_pipe(self) -> None:  # rich would exit with 1, which means failed trials here
            raise BrokenPipeError

    width = _find_width(sys.stderr if stderr else sys.stdout)  # below: names stay as they are
    return Pipe(stderr=stderr, width=width, soft_wrap=True, highlight=False, markup=False, emoji=False)


def _find_width(stream: TextIO) -> int | None:
    """Return the columns of `stream` if it is neither a terminal nor has COLUMNS, else None: rich then knows them."""
    return None if stream.isatty() or os.environ.get("COLUMNS", "").isdigit() else _UNLIMITED


def replace_unprintable() -> None:
    """Make stdout and stderr replace characters that they cannot encode, such as ± by +-, instead of failing."""
    codecs.register_error(_PLAIN, _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=_PLAIN)


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


@contextlib.contextmanager
def reserve_stdout() -> Iterator[None]:
    """Reserve stdout for `print_json`: within this context all other output, including that of libraries, goes to
    stderr."""
    global _document
    _document = sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _document = None


def print_json(content: Any) -> None:
    """Print the document of --json, converted by `to_json`."""
    print(json.dumps(to_json(content), indent=2, allow_nan=False), file=_document or sys.stdout)


@contextlib.contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Make the first SIGTERM or SIGHUP raise KeyboardInterrupt within this context, as Ctrl-C does; `timeout` and a
    closed terminal send theirs twice. An interrupt that falls into a callback of Python's memory management, where it
    is reported and forgotten, is raised again instead. Outside the main thread, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    again: list[threading.Timer] = []
    report = sys.unraisablehook

    def interrupt(number: int, frame: object) -> None:
        leave_terminal(number)
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    def repeat(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            report(lost)
            return
        signal.signal(signal.SIGTERM, interrupt)
        again.append(threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)))
        again[-1].start()

    before, sys.unraisablehook = {number: signal.signal(number, interrupt) for number in ENDING}, repeat
    try:
        yield
    finally:
        for timer in again:
            timer.cancel()
        sys.unraisablehook = report
        for number, former in before.items():
            signal.signal(number, former)


def repeat_command(verb: str) -> str:
    """Return the command line of this process without options that start from the beginning and without passwords."""
    words = [shlex.quote(tracking.redact(word)) for word in sys.argv[2:] if word != "--fresh"]
    return " ".join([groups.describe_command(), verb, *words])


def build_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> Table:
    """Return a table without lines; the columns named in `right` are right-aligned. Text that does not fit is wrapped
    between words, never inside a word."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    columns = [[name, *(row[i] for row in rows)] for i, name in enumerate(header)]
    lines = [max(map(len, cells)) for cells in columns]
    words = [max(len(word) for cell in cells for word in cell.split()) for cells in columns]
    widest = lines.index(max(lines))
    room = build_console().width - 2 * (len(columns) - 1) - words[widest]
    tight = sum(lines) - lines[widest] > room  # rich would narrow none but the widest column
    for i, (name, line, word) in enumerate(zip(header, lines, words, strict=True)):
        whole = word == line  # nothing to fold at: only the other columns give way
        side: Literal["left", "right"] = "right" if name in right else "left"
        most = word if tight and i != widest else None
        grid.add_column(Text(name), justify=side, overflow="fold", min_width=word, max_width=most, no_wrap=whole)
    for row in rows:
        grid.add_row(*map(Text, row))
    return grid
