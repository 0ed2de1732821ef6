"""Errors that a user can act on.

The command line prints the message of an `AblateError` without a traceback and exits with status 2. Every other
exception is a bug in Ablate and keeps its traceback.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

MOST_LETTERS = 200
"""Maximum letters of a value that a message repeats."""
_MOST_IN_LINE = 4000  # letters, of which some may be a value without quotes, such as a path with spaces
_LONG_LIST = 100  # letters of a list of accepted names that is not repeated
_LONG = re.compile(rf"(?<!\w)(?:'[^'\n]*'|\"[^\"\n]*\")(?!\w)|\S{{{MOST_LETTERS + 1},}}")
_LONG_LINE = re.compile(rf".{{{_MOST_IN_LINE},}}")


def shorten_value(text: str) -> str:
    """Return the text of a value; of one with more than 200 characters its beginning, its end, and their number."""
    return text if len(text) <= MOST_LETTERS else f"{text[:100]} ... {text[-60:]} ({len(text):,} characters)"


def shorten_values(message: str) -> str:
    """Return a message with its long words and quoted texts shortened as values are, except for existing paths, which
    may be part of a command."""

    def shorten(match: re.Match[str]) -> str:
        word = match.group()  # such as sqlite:////data/mlflow.db
        path = word[word.index("/") :].strip("'\"") if "/" in word and len(word) < _MOST_IN_LINE else ""
        return word if path and os.path.lexists(path) else shorten_value(word)

    for long in (_LONG, _LONG_LINE):
        message = long.sub(shorten, message)
    return message


class AblateError(Exception):
    """An error whose message states what was given, what is accepted and what to do. Long values in it are
    shortened to their beginning and end."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*(shorten_values(one) if isinstance(one, str) else one for one in arguments))


class DataError(AblateError):
    """Input data is missing, unreadable or too small; the message names the file and, for text, the line."""


class ChangedInputsError(DataError):
    """A run cannot go on, as its data or a model that it reads differs from what it began with."""


class StoreError(AblateError):
    """`mlruns/`, the Optuna storage or the MLflow server cannot be used."""


class OutOfMemory(AblateError):  # noqa: N818 - as torch says it
    """A device has too little memory for the computation; the message says which settings reduce it."""


class SweepError(AblateError):
    """A sweep is unknown, or differs from the sweep that its study was started with."""


class RunFailed(AblateError):  # noqa: N818 - it says what is the case
    """A run of an experiment ended without an outcome, and left its process as it was. `details`: what it printed."""

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.details = details


class TakenOverError(AblateError):
    """Another process trains the trial that this one was training: nothing of it may be written any more."""


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration: its dotted `path`, what is wrong, and the value that was given."""

    path: str
    message: str
    given: Any = None

    def within(self, part: str) -> Problem:
        """Return the same problem with `part` as the first part of its path."""
        return replace(self, path=f"{part}.{self.path}" if self.path else part)

    def __str__(self) -> str:
        value = "" if self.given is None else f" (given: {shorten_value(repr(self.given))})"
        return f"{self.path}: {self.message}{value}" if self.path else f"{self.message}{value}"


class ConfigError(AblateError):
    """All mistakes of a configuration at once, in `problems`, each once."""

    def __init__(self, problems: Iterable[Problem], source: str = "the configuration") -> None:
        self.problems = tuple({str(problem): problem for problem in problems}.values())
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__(
            "\n".join([f"{count} in {source}:", *(f"  {problem}" for problem in _name_once(self.problems))])
        )


def _name_once(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the problems, with each list of accepted values only at its first mention."""
    listed: set[str] = set()
    for problem in problems:
        text, _, rest = problem.message.partition(" Accepted: ")
        names, meant, hint = rest.partition(" Did you mean ")
        shown = replace(problem, message=f"{text} Accepted: as above.{meant}{hint}")
        yield shown if len(names) > _LONG_LIST and names in listed else problem
        listed.add(names)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ' Did you mean X?' with the closest of `known`, or '' if none is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]}?" if close else ""
