"""What the scheduler asks of a kind of experiments: to check a sweep of them before the first run, and to run one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from ablate.config.errors import ConfigError
from ablate.experiment.trainable import ExternalExperiment, Trainable
from ablate.experiment.trainer import HOW
from ablate.sweeps.records import SETTING
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.spec.validation import locate
from ablate.training.external import Driver, load_driver, run_external
from ablate.training.procedures import Hooks, Place, Result

if TYPE_CHECKING:
    from ablate.scheduler.queue import Queue


class Runner:
    """Runs of a kind of `experiments` (`ablate.experiment.trainable`), by its driver. Ablate's own trainer overrides
    all of it."""

    def __init__(self, kind: type[Trainable]) -> None:
        self.kind = kind

    @cached_property
    def driver(self) -> Driver:
        """Checks and carries out the runs."""
        return load_driver(self.kind)

    @property
    def spoils(self) -> bool:
        """Whether a run that fails leaves its process in an unknown state."""
        return self.driver.spoils

    def prepare(self, spec: Sweep) -> Any:
        """Return what the runs of `spec` read. Raises AblateError for what would fail every run."""
        problems = [
            replace(problem, path=locate(spec, arm, problem.path))
            for arm, experiment in _list_ends(spec)
            for problem in self.driver.check(experiment)
        ]
        if problems:
            raise ConfigError(problems, f"sweep {spec.name}")

    def fingerprint(self, spec: Sweep, prepared: Any) -> dict[str, str]:
        """Return input -> SHA-256, for the inputs of the runs, and the settings that the file leaves out."""
        every = [
            fingerprint_settings(spec),
            *(self.driver.fingerprint(experiment) for _, experiment in _list_ends(spec)),
        ]
        return {name: digest for inputs in every for name, digest in inputs.items()}

    def describe_arms(
        self, spec: Sweep, prepared: Any, before: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Return arm -> attributes of its study that are known before its runs begin. `before`: those that it has."""
        values = {arm: spec.base(arm).trivial_value for arm in spec.all_arms}
        return {arm: {} if value is None else {"trivial_loss": value} for arm, value in values.items()}

    def check_donors(self, queue: Queue, prepared: Any) -> None:
        """Check the models that runs start from, as far as they are there."""

    def settle(self, threads: int) -> None:
        """Import what runs need, and set the threads that each computes on."""
        self.driver.settle(threads)

    def train(self, experiment: Trainable, place: Place, hooks: Hooks, updates: int | None) -> Result:
        """Run `experiment` (as a rung, so many `updates`) and return its result."""
        return run_external(cast(ExternalExperiment, experiment), place, hooks)


def fingerprint_settings(spec: Sweep) -> dict[str, str]:
    """Return setting -> SHA-256 of its values in all arms, without those of where it is computed: another version of
    Ablate may have other defaults. One that it has besides is no change."""
    values: dict[str, dict[str, Any]] = {}
    for arm in spec.all_arms:
        for key, value in spec.base(arm).flat().items():
            if key not in HOW:
                values.setdefault(key, {})[arm] = value
    texts = {key: json.dumps(of_arms, sort_keys=True) for key, of_arms in values.items()}
    return {f"{SETTING}{key}": hashlib.sha256(text.encode()).hexdigest() for key, text in texts.items()}


def _list_ends(spec: Sweep) -> Iterator[tuple[str, ExternalExperiment]]:
    """Yield each arm with its experiments at the ends and values of each setting that it searches."""
    for arm in spec.all_arms:
        for point in spec.list_points(arm):
            yield arm, cast(ExternalExperiment, spec.at(arm, point))


def load_runner(kind: type[Trainable]) -> Runner:
    """Return the runner of a kind of experiments. That of Ablate's own trainer imports torch."""
    if not kind.is_own:
        return Runner(kind)
    runner: Runner = import_module("ablate.scheduler.own_runs").RUNNER
    return runner
