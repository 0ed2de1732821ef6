"""Errors that a user can act on.

The command line prints the message of an `AblateError` without a traceback and exits with status 2.
Everything else that is raised is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any


class AblateError(Exception):
    """Says what was given, what is accepted and what to do."""


class DataError(AblateError):
    """Input data is missing, unreadable or too small; the message names the file and, for text, the line."""


class StoreError(AblateError):
    """`mlruns/`, the Optuna storage or the MLflow server cannot be used."""


class OutOfMemory(AblateError):  # noqa: N818 - as torch says it
    """A device has too little memory for what it is to compute at once; the message says what needs less."""


class SweepError(AblateError):
    """A sweep is unknown, or does not match what its study was started with."""


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration: its dotted `path`, what is wrong, and the value that was given."""

    path: str
    message: str
    given: Any = None

    def within(self, part: str) -> Problem:
        """The same problem where `part` holds what it was found in."""
        return replace(self, path=f"{part}.{self.path}" if self.path else part)

    def __str__(self) -> str:
        value = "" if self.given is None else f" (given: {self.given!r})"
        return f"{self.path}: {self.message}{value}" if self.path else f"{self.message}{value}"


class ConfigError(AblateError):
    """All the mistakes of a configuration at once, in `problems`, each once."""

    def __init__(self, problems: Iterable[Problem], source: str = "the configuration") -> None:
        self.problems = tuple({str(problem): problem for problem in problems}.values())
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n".join([f"{count} in {source}:", *(f"  {problem}" for problem in self.problems)]))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' Did you mean X?' for the closest of `known`, or '' where nothing is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]}?" if close else ""
