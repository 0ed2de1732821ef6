"""Runs of a command (`ablate.experiment.command`): its process, its output, and the values in it."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.config.errors import Problem, RunFailed, StoreError
from ablate.config.formatting import format_duration, join_words
from ablate.config.merging import iterate_leaves
from ablate.data.files import fingerprint_files
from ablate.experiment.command import (
    CommandExperiment,
    FileResult,
    JsonResult,
    MlflowResult,
    RegexResult,
    list_placeholders,
)
from ablate.tracking.provenance import describe_commit
from ablate.training import guard
from ablate.training.external import Driver, ExternalRun, log_output, read_end
from ablate.training.procedures import Ended

POLL = 0.05  # seconds between two looks at a running command
LOOK = 1.0  # seconds between two looks at its MLflow run
GRACE = 5.0  # seconds that a command has to end after SIGTERM, fewer than a worker itself has
MOST_LOGGED = 10_000_000  # bytes of an output that are kept in MLflow
TAIL = 2_000  # letters of the output in the message of a failure
STDOUT, STDERR = "stdout.txt", "stderr.txt"

Values = Mapping[str, float]


class CommandDriver(Driver):
    """Runs a command and reads its values."""

    def check(self, experiment: CommandExperiment) -> list[Problem]:
        folder, program = Path(experiment.cwd), shlex.split(experiment.run)[0]
        if not folder.is_dir():
            return [Problem("cwd", f"there is no such folder in {Path.cwd()}", experiment.cwd)]
        if list_placeholders(program):
            return []
        path = {**os.environ, **experiment.env}.get("PATH")
        if "/" in program:
            path, program = None, str(folder.absolute() / program)
        if shutil.which(program, path=path):
            return []
        return [Problem("run", "there is no such program, or it is not executable", program)]

    def fingerprint(self, experiment: CommandExperiment) -> dict[str, str]:
        """Return file -> SHA-256, of the files that the command names, such as its script."""
        folder, (program, *words) = Path(experiment.cwd), shlex.split(experiment.run)
        named = [word for word in ([program] if "/" in program else []) + words if not list_placeholders(word)]
        files = [word for word in dict.fromkeys(named) if (folder / word).is_file()]
        return {f"file {word}": fingerprint_files([folder / word], tracking.cache_folder()) for word in files}

    def gather_facts(self, experiment: CommandExperiment) -> dict[str, Any]:
        folder = Path(experiment.cwd).absolute()
        return {"ablate.cwd": str(folder), **describe_commit(folder)}

    def run(self, run: ExternalRun) -> Ended:
        experiment: CommandExperiment = run.experiment
        folder = run.folder.absolute()
        reader, arguments = _open_reader(run, folder), experiment.build_arguments(str(folder))
        run.is_logged = isinstance(experiment.result, MlflowResult)
        run.tracker.set_tags({"ablate.command": shlex.join(arguments)})
        started = time.monotonic()
        with (
            open(folder / STDOUT, "ab") as stdout,
            open(folder / STDERR, "ab") as stderr,
            subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(GRACE), *arguments],
                cwd=experiment.cwd,
                env=_build_environment(run, folder),
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            ) as process,
        ):
            assert process.stdin is not None
            try:
                status, reason = _follow(run, process, reader, started)
            finally:
                process.stdin.close()  # the guard ends the command, if it still runs
                code = process.wait()
        for name in (STDOUT, STDERR):
            log_output(run.tracker, folder / name, MOST_LOGGED)
        if status == "late":
            raise RunFailed(f"it ran longer than the time limit of {reason}", _read_tail(folder))
        if status == "completed":
            status, reason = _judge(run, reader, code, folder)
        finite = {name: value for name, value in reader.values.items() if math.isfinite(value)}
        return Ended(status, reason, reader.step or max(run.curve, default=0), finite, {})


DRIVER = CommandDriver()


def _judge(run: ExternalRun, reader: Reader, code: int, folder: Path) -> tuple[str, str]:
    """Return how a command that ended by itself ended: completed or diverged, and why. Raises RunFailed."""
    values = {name: reader.values[name] for name in run.hooks.metrics if name in reader.values}
    broken = join_words(f"{name} {value}" for name, value in values.items() if not math.isfinite(value))
    if code:
        number = -code if code < 0 else code - 128
        told = f"ended by signal {number}" if number > 0 else f"exit status {code}"
        if broken:
            told += f", after {broken}: a command that diverged prints that and ends with 0, to count as an outcome"
        elif lines := read_end(folder / STDERR, TAIL).strip().splitlines():
            told += f": {lines[-1][:200]}"
        raise RunFailed(told, _read_tail(folder))
    if missing := [name for name in run.hooks.metrics if name not in reader.values]:
        found = f" It has {join_words(reader.values)}." if reader.values else ""
        told = f"no value of {join_words(missing)} was found: looked for {run.experiment.result.read_from}.{found}"
        raise RunFailed(told, _read_tail(folder))
    return ("diverged", broken) if broken else ("completed", "")


def _build_environment(run: ExternalRun, folder: Path) -> dict[str, str]:
    """Return the environment of the command."""
    experiment: CommandExperiment = run.experiment
    own = {
        "PYTHONUNBUFFERED": "1",  # or its lines would be seen at the end
        "ABLATE_SEED": str(experiment.seed),
        "ABLATE_RUN_ID": run.tracker.run_id,
        "ABLATE_RUN_FOLDER": str(folder),
    }
    if isinstance(experiment.result, MlflowResult):
        own |= {"MLFLOW_RUN_ID": run.tracker.run_id, "MLFLOW_TRACKING_URI": tracking.tracking_uri()}
    given = {name: experiment.fill(text, str(folder)) for name, text in experiment.env.items()}
    return {**os.environ, **own, **given}


def _follow(run: ExternalRun, process: subprocess.Popen[bytes], reader: Reader, started: float) -> tuple[str, str]:
    """Read values while the command runs, and return how it ended: completed (by itself), late, pruned or
    interrupted."""
    limit = run.experiment.time_limit
    while True:
        has_ended = process.poll() is not None
        for step, values in reader.poll(has_ended):
            if (value := next((values[name] for name in run.hooks.metrics if name in values), None)) is not None:
                run.show(step, value)
            finite = {name: value for name, value in values.items() if math.isfinite(value)}
            if finite and not run.report(step, finite):
                return "pruned", f"pruned at step {step}"
        if has_ended:
            return "completed", ""
        if run.must_stop():
            return "interrupted", "stopped"
        if limit and time.monotonic() - started > limit:
            return "late", format_duration(limit)
        time.sleep(POLL)


def _read_tail(folder: Path) -> str:
    """Return the end of the output, stderr last."""
    parts = []
    for name in (STDOUT, STDERR):
        text = read_end(folder / name, TAIL).strip()
        parts += [f"{name}, its end:\n{text}"] if text else []
    return "\n\n".join(parts) or "it has printed nothing"


# ------------------------------------------------------------------ values


class Reader:
    """Reads values that a command gives, while it runs and at its end."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self.wanted = tuple(wanted)
        self.values: dict[str, float] = {}
        """The last value of each metric."""
        self.step = 0
        """The last step."""

    def poll(self, has_ended: bool) -> Iterator[tuple[int, Values]]:
        """Take what is new, and yield the points of the curve in it: step, values. `has_ended`: no more comes."""
        for values, step in self.read(has_ended):
            self.values |= values
            if step is not None and values:
                self.step = max(self.step, step)
                yield step, values

    def read(self, has_ended: bool) -> Iterator[tuple[Values, int | None]]:
        """Yield what is new: values, their step."""
        raise NotImplementedError


class LineReader(Reader):
    """Reads lines of files that grow."""

    def __init__(self, wanted: Iterable[str], files: Iterable[Path]) -> None:
        super().__init__(wanted)
        self._rests = dict.fromkeys(files, b"")
        self._places = {file: file.stat().st_size if file.exists() else 0 for file in self._rests}

    def read(self, has_ended: bool) -> Iterator[tuple[Values, int | None]]:
        for file, rest in self._rests.items():
            if not file.exists():
                continue
            with open(file, "rb") as stream:
                stream.seek(self._places[file])
                content = stream.read()
            self._places[file] += len(content)
            *lines, self._rests[file] = re.split(rb"[\r\n]", rest + content)  # a progress bar begins lines anew
            for line in [*lines, self._rests[file]] if has_ended else lines:
                yield self.parse(line.decode(errors="replace"))

    def parse(self, line: str) -> tuple[Values, int | None]:
        """Return the values in a line, and its step."""
        raise NotImplementedError


class JsonReader(LineReader):
    """Reads lines that are JSON objects."""

    def __init__(self, wanted: Iterable[str], files: Iterable[Path], step: str) -> None:
        super().__init__(wanted, files)
        self._step = step

    def parse(self, line: str) -> tuple[Values, int | None]:
        if not line.strip().startswith("{"):
            return {}, None
        try:
            found = json.loads(line)
        except ValueError:
            return {}, None
        return self.pick(found)

    def pick(self, found: Mapping[str, Any]) -> tuple[Values, int | None]:
        """Return the numbers of an object by their dotted names, and its step. null is a metric that is not finite, as
        some languages write it."""
        values: dict[str, float] = {}
        for name, value in iterate_leaves(found):
            if name in self.wanted and (value is None or isinstance(value, str)):
                value = _parse_number("nan" if value is None else value)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                values[name] = float(value)
        step = values.pop(self._step, None)
        return values, int(step) if step is not None and math.isfinite(step) else None


class RegexReader(LineReader):
    """Reads matches of a pattern, whose value is that of the wanted metric."""

    def __init__(self, wanted: Iterable[str], files: Iterable[Path], pattern: str) -> None:
        super().__init__(wanted, files)
        self._pattern = re.compile(pattern)

    def parse(self, line: str) -> tuple[Values, int | None]:
        if not (match := self._pattern.search(line)):
            return {}, None
        groups = match.groupdict()
        value = _parse_number(groups.get("value") or match[1])
        step = _parse_number(groups.get("step"))
        return {} if value is None else dict.fromkeys(self.wanted, value), None if step is None else int(step)


class FileReader(JsonReader):
    """Reads a file that is there at the end: a number, a JSON object, or lines of them."""

    def read(self, has_ended: bool) -> Iterator[tuple[Values, int | None]]:
        yield from super().read(has_ended)
        (file,) = self._rests
        if not has_ended or not file.is_file():
            return
        text = file.read_text(encoding="utf-8", errors="replace").strip()
        if (number := _parse_number(text)) is not None:
            yield dict.fromkeys(self.wanted, number), None
        elif not {*self.wanted} <= self.values.keys():  # an object of several lines
            yield self.parse(text)


class MlflowReader(Reader):
    """Reads metrics of the MLflow run, at most once in `LOOK` seconds."""

    def __init__(self, wanted: Iterable[str], run_id: str) -> None:
        super().__init__(wanted)
        self._run_id, self._next = run_id, time.monotonic() + LOOK

    def read(self, has_ended: bool) -> Iterator[tuple[Values, int | None]]:
        if time.monotonic() < self._next and not has_ended:
            return
        with tracking.explain_errors(tracking.tracking_uri()):
            points = [
                (metric.step, name, metric.value)
                for name in self.wanted
                for metric in tracking.client().get_metric_history(self._run_id, name)
            ]
        for step, name, value in sorted(points, key=lambda point: point[0]):
            yield {name: value}, step
        self._next = time.monotonic() + LOOK


def _parse_number(text: str | None) -> float | None:
    """Return a number, also nan and inf; None for anything else."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _open_reader(run: ExternalRun, folder: Path) -> Reader:
    """Return the reader of the experiment's result; what an earlier start of the run left is not read."""
    result, wanted, output = run.experiment.result, run.hooks.metrics, [folder / STDOUT, folder / STDERR]
    if isinstance(result, RegexResult):
        return RegexReader(wanted, output, result.pattern)
    if isinstance(result, FileResult):
        file = folder / result.path
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"The result of an earlier start, {file}, cannot be removed: {error.strerror}") from None
        return FileReader(wanted, [file], result.step)
    if isinstance(result, MlflowResult):
        return MlflowReader(wanted, run.tracker.run_id)
    assert isinstance(result, JsonResult)
    return JsonReader(wanted, output[:1], result.step)
