"""The interface of a run: its place in MLflow, hooks and result, and the procedure that trains (Lightning, or
another)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeAlias

from ablate.config.errors import ConfigError, Problem
from ablate.data import Corpus
from ablate.experiment.trainer import HOW
from ablate.experiment.tree import Experiment
from ablate.tracking.tracker import Tracker
from ablate.training.precision import Speed

BRANCHED = "ablate.branched_updates"
"""The fact with the updates of the copy of a run that decays to a rung, in addition to those of the run."""


@dataclass(frozen=True)
class Earlier:
    """The progress of an earlier run."""

    updates: int = 0
    """Optimizer updates made."""
    validations: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Updates -> metrics of the validation after them."""
    experiment: Mapping[str, Any] = field(default_factory=dict)
    """The experiment, as {dotted path: value}."""

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError, with the differences, if it belongs to another experiment."""
        now, before = experiment.flat(), self.experiment
        problems = [
            Problem(key, f"the checkpoint belongs to a run with {before[key]!r}", now[key])
            for key in now
            if key in before and key not in HOW and before[key] != now[key]
        ]
        if problems:
            raise ConfigError(problems, "the checkpoint to resume from")


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    status: str
    """completed, diverged, pruned, interrupted, or paused: ended a rung, with the metrics there."""
    metrics: dict[str, float]
    """Metrics of the last validation: val/loss and the task's own."""
    step: int
    """Optimizer updates made."""
    run_id: str | None
    """The MLflow run."""
    seconds: float
    """Wall-clock seconds of this process, preparation included."""
    reason: str = ""
    """Why it ended early."""
    facts: dict[str, Any] = field(default_factory=dict, repr=False)
    """Parameters, corpus fingerprint, hardware, precision, package versions: tags of the run."""
    items_per_update: int = 1
    """Tokens or images of one update."""
    layers: dict[str, list[float | None]] = field(default_factory=dict, repr=False)
    """Measurements of `trainer.diagnose` at the end: number -> its value for each layer."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Place:
    """The place of a run in MLflow: `experiment`, its parent run, its name and extra tags; or `run_id`, to continue
    one."""

    experiment: str = "train"
    name: str = ""
    parent: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    run_id: str | None = None


@dataclass(frozen=True)
class Hooks:
    """Functions of the caller that are called during a run, and where it pauses."""

    started: Callable[[str, str, Earlier], None] | None = None
    """Called with the run's id, lines that describe the run, and its earlier progress, before the next update."""
    progress: Callable[[int, float], None] | None = None
    """Called with the number of updates and the training loss, every `log_every_n_steps`."""
    decide: Callable[[int, Mapping[str, float]], bool] | None = None
    """Called with the number of updates and the metrics after each validation; returning False ends the run as
    pruned."""
    asked_to_stop: Callable[[], bool] | None = None
    """Called after every update; returning True ends the run as interrupted."""
    pause_at: int | None = None
    """Number of updates after which the run ends as paused, with a checkpoint to go on from."""
    metrics: Sequence[str] = ()
    """The metrics that the caller reads."""
    loaded: Callable[[Mapping[str, str]], None] | None = None
    """Called with the inputs of the run (`fingerprint_inputs`) before it is opened; an error that it raises keeps the
    run from beginning."""


class Ended(NamedTuple):
    """The end of a procedure."""

    status: str
    reason: str
    step: int
    """Optimizer updates made."""
    metrics: dict[str, float]
    """Metrics of the last validation."""
    facts: dict[str, Any]
    """Further tags of the run."""
    layers: dict[str, list[float | None]] = {}
    """Number -> its value for each layer at the end."""


Run: TypeAlias = Callable[[Experiment, Corpus, Speed, Tracker, Hooks], Ended]


@dataclass(frozen=True)
class Procedure:
    """The steps from an experiment's data to its result; the tracking around them is always the same."""

    pin: Callable[[Experiment, Corpus], Experiment]
    """Returns the experiment with the SHA-256 of the weights that it starts from. Raises AblateError if they do not
    fit."""
    choose_speed: Callable[[Experiment], Speed]
    """Returns the precision and whether it compiles."""
    load_run: Callable[[], Run]
    """Imports what it needs, and returns the function that runs it, for an open MLflow run."""
    count_validation_items: Callable[[Experiment, Corpus], int]
    """Returns the number of sequences, images or pairs for validation."""
    resumes: bool = True
    """Whether a stopped run resumes from a checkpoint; otherwise it starts from the beginning."""
