"""One run of an experiment that something else than Ablate's trainer runs: its MLflow run and its folder, around what
the driver of its kind does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from ablate.config.errors import ConfigError, Problem
from ablate.experiment.trainable import ExternalExperiment, Trainable
from ablate.tracking.provenance import describe_cpu, log_facts, pick_shown, read_versions
from ablate.tracking.tracker import Tracker
from ablate.training.procedures import Earlier, Ended, Hooks, Place, Result
from ablate.training.runs import end_with_error, lock_run, open_run, run_folder


@dataclass
class ExternalRun:
    """A run that a driver carries out."""

    experiment: Any
    tracker: Tracker
    hooks: Hooks
    curve: dict[int, dict[str, float]]
    """Step -> values there, so far."""
    is_logged: bool = False
    """Whether what it runs writes the values to MLflow itself."""

    @cached_property
    def folder(self) -> Path:
        """A folder that stays the same for this run, also when it is begun again."""
        return run_folder(self.tracker.run_id)

    def report(self, step: int, values: Mapping[str, float]) -> bool:
        """Take the values at a step; return False if the run must be ended as pruned."""
        if step in self.curve:
            return True
        self.curve[step] = dict(values)
        if not self.is_logged:
            self.tracker.log_metrics(values, step)
        return self.hooks.decide is None or self.hooks.decide(step, values)

    def show(self, step: int, value: float) -> None:
        """Show a value as the progress of the run."""
        if self.hooks.progress:
            self.hooks.progress(step, value)

    def must_stop(self) -> bool:
        """Return whether the run must be ended as interrupted."""
        return self.hooks.asked_to_stop is not None and self.hooks.asked_to_stop()


class Driver:
    """Checks and runs experiments of one kind of `ablate.experiment.trainable.experiments`."""

    spoils = False
    """Whether a run that fails leaves its process in an unknown state."""

    def settle(self, threads: int) -> None:
        """Import what runs need, and set the threads that each computes on, where that is this process."""

    def check(self, experiment: Any) -> list[Problem]:
        """Return what would fail every run of `experiment` on this machine, at the paths of its fields and settings."""
        return []

    def fingerprint(self, experiment: Any) -> dict[str, str]:
        """Return input -> SHA-256, for what its runs read besides their settings: a sweep goes on with the same."""
        return {}

    def gather_facts(self, experiment: Any) -> dict[str, Any]:
        """Return tags of its runs, such as versions."""
        return {}

    def run(self, run: ExternalRun) -> Ended:
        """Carry out `run`. Raises RunFailed where it ends without an outcome."""
        raise NotImplementedError


def load_driver(kind: type[Trainable]) -> Driver:
    """Return the driver of a kind of experiments. Raises ConfigError if its module is missing."""
    assert issubclass(kind, ExternalExperiment)
    try:
        driver: Driver = import_module(kind.driver).DRIVER
    except ModuleNotFoundError as error:
        text = f"the module {error.name} is missing, by which its runs are run"
        raise ConfigError([Problem("experiment.kind", text, kind.model_fields["kind"].default)]) from None
    return driver


def run_external(experiment: ExternalExperiment, place: Place, hooks: Hooks) -> Result:
    """Run `experiment` from its beginning and return its result."""
    begin, driver = time.perf_counter(), load_driver(type(experiment))
    inputs = driver.fingerprint(experiment)
    if hooks.loaded:
        hooks.loaded(inputs)
    facts = {
        "ablate.processor": describe_cpu(),
        **read_versions(("ablate",)),
        **driver.gather_facts(experiment),
    }
    tracker = open_run(experiment, place, experiment.program, facts, inputs)
    with lock_run(run_folder(tracker.run_id)):
        with end_with_error(tracker):
            if hooks.started:
                hooks.started(tracker.run_id, "", Earlier())
            run = ExternalRun(experiment, tracker, hooks, {})
            ended = driver.run(run)
        facts |= ended.facts
        log_facts(tracker, facts)
        if ended.metrics and not run.is_logged:
            tracker.log_metrics(ended.metrics, ended.step)
        tracker.end(ended.status, ended.reason, pick_shown(facts))
    seconds = time.perf_counter() - begin
    return Result(ended.status, ended.metrics, ended.step, tracker.run_id, seconds, ended.reason, facts)


def log_output(tracker: Tracker, file: Path, most: int) -> None:
    """Store a file of output as an artifact of the run; of a larger one, its last `most` bytes."""
    size = file.stat().st_size
    if size > most:
        tracker.log_text(f"[the first {size - most:,} bytes are left out]\n{read_end(file, most)}", file.name)
    elif size:
        tracker.log_file(file)


def read_end(file: Path, most: int) -> str:
    """Return the last `most` bytes of a file."""
    with open(file, "rb") as stream:
        stream.seek(max(0, file.stat().st_size - most))
        return stream.read().decode(errors="replace")
