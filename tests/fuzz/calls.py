"""One call of the command line in this process, and what must hold of any: an exit status of 0 or 2, a sentence with 2,
no traceback, no more than ten seconds."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from ablate.cli import main

SLOWEST = 10.0
"""Seconds of computing that a call may take; what waits instead is found by the driver."""
STATE = "ABLATE_FUZZ_STATE"
"""The file in which a call is written down before it begins: the driver sees there what hung or took the process."""
TRACE = "Traceback (most recent call last)"


class BrokenError(AssertionError):
    """What must hold of a call does not."""


def call(words: Sequence[str]) -> tuple[int, str]:
    """Run one command; return its status and what it wrote to stderr. Raises BrokenError."""
    write_down(shorten(words))
    errors = io.StringIO()
    begin = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            status: object = main(list(words))
        except SystemExit as end:  # of argparse
            status = end.code
        except BaseException:
            raise BrokenError(f"{shorten(words)} raised\n{traceback.format_exc()[-3000:]}") from None
    seconds, said = time.process_time() - begin, errors.getvalue()
    write_down("")
    if seconds > SLOWEST:
        raise BrokenError(f"{shorten(words)} computed for {seconds:.1f} s")
    if status not in (0, 2) or not isinstance(status, int):
        raise BrokenError(f"{shorten(words)} ended with status {status}:\n{said[-2000:]}")
    if TRACE in said:
        raise BrokenError(f"{shorten(words)} printed a traceback:\n{said[-3000:]}")
    if status == 2 and not said.strip():
        raise BrokenError(f"{shorten(words)} ended with status 2 and no word")
    return status, said


def shorten(words: Sequence[str]) -> str:
    """The command, as a person would repeat it."""
    return "ablate " + " ".join(ascii(word) for word in words)[:2000]


def write_down(command: str) -> None:
    """Tell the driver, where there is one, what runs now; '': nothing."""
    if file := os.environ.get(STATE):
        part = Path(f"{file}.part")
        part.write_text(json.dumps({"since": time.time(), "command": command}))
        part.replace(file)
