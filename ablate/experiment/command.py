"""`experiment: {kind: command, run: "python train.py --lr {lr} --seed {seed}"}`: any program, in any language."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from ablate.config.base import Kind
from ablate.config.bounds import MOST_SEED
from ablate.config.errors import Problem, did_you_mean
from ablate.config.registry import Registry
from ablate.experiment.trainable import SettingsExperiment, experiments

_NAME = r"[A-Za-z_][\w.-]*"
_PLACEHOLDER = re.compile(rf"\{{\{{({_NAME})\}}\}}|\{{({_NAME})\}}")
"""{{name}}, which stands for {name} itself, or {name}."""
_UNCLOSED = re.compile(rf"\{{({_NAME})(?![\w.}}-])")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.")
_SHELL = re.compile(r"(?<!\S)(?:\d*[<>&|;]+\S*|\S*(?:;(?!\S)|`|\$[\w({])\S*)")
"""A word that only a shell reads, where nothing is quoted: | > out 2>&1 && last; `date` $HOME."""
SEED, FOLDER = "seed", "run_folder"
"""The placeholders that each command has: its seed, and a folder of its own."""


class Result(Kind):
    """A way in which a command gives its values back."""

    read_from: ClassVar[str]
    """Where they are looked for, in words."""


results: Registry[Result] = Registry("result", Result, default="json")


@results.register
class JsonResult(Result):
    """The last line of stdout that is a JSON object with the metric's name as a key, such as {"step": 100, "val_loss":
    3.21}. Lines with a step are points of a curve."""

    kind: Literal["json"] = "json"
    step: str = "step"
    """The key of the step."""
    read_from: ClassVar[str] = "the last line of stdout that is a JSON object with the metric's name as a key"


@results.register
class RegexResult(Result):
    """The last match of a pattern in the lines of stdout and stderr."""

    kind: Literal["regex"] = "regex"
    pattern: str
    """A regular expression of Python. Its group `value`, or else its first, is the value; a group `step` makes matches
    points of a curve: 'step (?P<step>\\d+): val loss (?P<value>\\S+)'."""
    read_from: ClassVar[str] = "the last match of the pattern in stdout and stderr"

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from None
        if not compiled.groups:
            raise ValueError("has no group for the value: put parentheses around it, such as 'val loss (\\S+)'")
        return pattern


@results.register
class FileResult(Result):
    """A file that the command writes: JSON with the metric's name as a key, such lines, or a number alone."""

    kind: Literal["file"] = "file"
    path: str = Field(min_length=1)
    """The file, relative to the run's own folder, {run_folder} of the command. It is removed before the command
    starts."""
    step: str = "step"
    """The key of the step, where lines have one."""
    read_from: ClassVar[str] = "the file that the command writes, with the metric's name as a key or a number alone"


@results.register
class MlflowResult(Result):
    """The metric in the run's own MLflow run: the command gets MLFLOW_RUN_ID and MLFLOW_TRACKING_URI, so that
    `mlflow.log_metric(NAME, value, step)` logs there."""

    kind: Literal["mlflow"] = "mlflow"
    read_from: ClassVar[str] = "the metric of the MLflow run that MLFLOW_RUN_ID names"


@experiments.register
class CommandExperiment(SettingsExperiment):
    """A command line, run once for each settings and seed. No shell reads it: it is split into arguments once, and a
    value is put into one of them, so that no value can add an argument or a command."""

    kind: Literal["command"] = "command"
    run: str = Field(min_length=1)
    """The command line, quoted as for a shell. {NAME} stands for the setting NAME, {seed} for the seed, {run_folder}
    for a folder of the run; {{NAME}} is {NAME} itself. What needs a shell, such as pipes, variables and wildcards,
    belongs into a script."""
    settings: dict[str, Any] = {}
    """NAME -> value of the placeholders, also nested. Arms and the search give others under the same names."""
    result: Annotated[Result, results] = Field("json", validate_default=True)
    """How the value of the metric comes back."""
    seed: int = Field(0, ge=0, le=MOST_SEED)
    """The seed of the search, for {seed}; the command has it as ABLATE_SEED too."""
    steps: int | None = Field(None, gt=0)
    """The last step of a run whose results have steps, for the progress and a pruner."""
    time_limit: float | None = Field(None, gt=0)
    """Seconds after which a run is ended and has failed. None: it may take as long as it takes."""
    env: dict[str, str] = {}
    """Environment variables besides those of the worker. Placeholders are allowed in their values."""
    cwd: str = "."
    """The folder in which it runs, relative to the current one."""

    driver: ClassVar[str] = "ablate.training.commands"
    same: ClassVar[str] = "run the same program"
    seeding: ClassVar[str] = "Let {seed} or ABLATE_SEED reach whatever is random."

    def check(self) -> Iterator[Problem]:
        try:
            words = shlex.split(self.run)
        except ValueError as error:
            yield Problem("run", f"cannot be split into arguments: {error}", self.run)
            return
        if not words:
            yield Problem("run", "is empty", self.run)
        if shell := _SHELL.search(_QUOTED.sub("x", self.run)):
            text = f"{shell[0]} is for a shell, and none reads the line: write a script, or quote it as an argument"
            yield Problem("run", text)
        values, fields = self.values, [name for name in type(self).model_fields if name not in (SEED, "settings")]
        known, wanted = [*values, SEED, FOLDER], dict[str, str]()
        for place, text in [
            *(("run", word) for word in words),
            *((f"env.{key}", one) for key, one in self.env.items()),
        ]:
            wanted |= dict.fromkeys(list_placeholders(text), place)
            for name in {*_UNCLOSED.findall(_PLACEHOLDER.sub("", text))}.intersection(known):
                wanted[name] = place
                yield Problem(place, f"the brace of {{{name} is not closed: write {{{name}}}")
        for name, place in wanted.items():
            if name in fields:
                yield Problem(place, f"{{{name}}} is a field of the experiment: give the setting another name")
            elif name not in known:
                accepted = ", ".join(f"{{{one}}}" for one in known)
                text = f"nothing gives {{{name}}} a value: neither settings nor search nor this arm."
                yield Problem(place, f"{text} Accepted: {accepted}.{did_you_mean(name, known)}")
        for name, value in values.items():
            if name not in wanted:
                hint = did_you_mean(name, [*fields, *wanted])
                text = f"is no placeholder of run, so it would change nothing: write {{{name}}} there.{hint}"
                yield Problem(name, text)
            elif not isinstance(value, (str, int, float)) or (isinstance(value, float) and not math.isfinite(value)):
                yield Problem(name, "must be text, a finite number, true or false", value)

    def identify(self) -> dict[str, Any]:
        return {"command.program": self.program, "command.cwd": self.cwd}

    @property
    def program(self) -> str:
        """The first words of the command, up to a placeholder or an option."""
        words = shlex.split(self.run)
        count = next((i for i, word in enumerate(words) if word.startswith("--") or list_placeholders(word)), None)
        return shlex.join(words[:count] or words[:1])

    # ------------------------------------------------------------------ runs

    @property
    def time_limit_seconds(self) -> float | None:
        return self.time_limit

    def describe_runs(self) -> list[str]:
        limit = "no time limit" if self.time_limit is None else f"a time limit of {self.time_limit:g} s"
        environment = ", ".join(f"{key}={text}" for key, text in self.env.items())
        return [
            f"Each run is the command {self.run} in the folder {self.cwd}, without a shell; its value is that of "
            f"{self.result.read_from}. There is {limit}; a run beyond one, or with another exit status than 0, has "
            "failed and is no outcome.",
            "That its seed decides all that chance decides, and that all arms train on the same data for equally long, "
            "is up to the program: it is not checked.",
            *self.list_cautions(),
            *([f"Its environment sets {environment}."] if environment else []),
        ]

    def list_cautions(self) -> list[str]:
        if any(SEED in list_placeholders(text) for text in (self.run, *self.env.values())):
            return []
        return [f"The command has no {{{SEED}}}: it can know its seed by ABLATE_SEED alone."]

    def describe_length(self) -> str:
        told = self.program if self.steps is None else f"{self.program} to step {self.steps:,}"
        return f"{told}, at most {self.time_limit:g} s" if self.time_limit else told

    def build_arguments(self, folder: str) -> list[str]:
        """Return the arguments of the run in `folder`, the program first."""
        return [self.fill(word, folder) for word in shlex.split(self.run)]

    def fill(self, text: str, folder: str) -> str:
        """Return `text` with values in the place of its placeholders."""
        known = {**self.values, SEED: self.seed, FOLDER: folder}

        def replace(match: re.Match[str]) -> str:
            literal, name = match.groups()
            return f"{{{literal}}}" if literal else format_value(known[name])

        return _PLACEHOLDER.sub(replace, text)


def list_placeholders(text: str) -> list[str]:
    """Return the names of the placeholders in `text`."""
    return [match[2] for match in _PLACEHOLDER.finditer(text) if match[2]]


def format_value(value: Any) -> str:
    """Return a value as a command gets it: numbers with all digits, true and false in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)
