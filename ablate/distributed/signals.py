"""The signals that ask a run or a sweep to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator

_HANGUP = getattr(signal, "SIGHUP", None)  # a closed terminal; one that `nohup` ignores stays ignored
_CLOSING = [_HANGUP] if _HANGUP and signal.getsignal(_HANGUP) is not signal.SIG_IGN else []
ENDING = (signal.SIGTERM, *_CLOSING)
"""The signals that ask any command to stop."""
STOPPING = (signal.SIGINT, *ENDING, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else []))
"""The signals on which a run writes a checkpoint."""


@contextlib.contextmanager
def handle_signals(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Let `handler` handle the signals of `STOPPING` within this context; outside the main thread, do nothing."""

    def handle(number: int, frame: object) -> None:
        leave_terminal(number)
        handler(number, frame)

    try:
        before = {number: signal.signal(number, handle) for number in STOPPING}
    except ValueError:  # not the main thread, as in some notebooks
        before = {}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def leave_terminal(number: int) -> None:
    """Send output nowhere if signal `number` says that the terminal was closed: to write there is an error, which would
    end the run instead of the checkpoint."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and number == _HANGUP:
            try:
                os.write(stream.fileno(), b"")
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
