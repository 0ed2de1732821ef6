"""What is logged, on stderr: for the command line, and for the processes that it starts."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import TextIO


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes messages alone, to what `sys.stderr` is at the moment: rich takes its place while it draws a bar."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


@contextlib.contextmanager
def log_to_stderr() -> Iterator[None]:
    """Write what Ablate logs within to stderr, from INFO on."""
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
