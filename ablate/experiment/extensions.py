"""Behaviour of experiment parts that is implemented in packages above training: warm starts, adapters, alignment,
downstream tasks, measurements. Training, estimates and sweeps call the extensions of an experiment and import none of
those packages, so that each can be left out of an installation. A package is imported when an experiment sets its part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ablate.config.errors import ConfigError, Problem
from ablate.data import Corpus
from ablate.experiment.tree import Experiment

if TYPE_CHECKING:
    from torch import Tensor

    from ablate.models import Model

EXTENSIONS = {
    "warm_start": "ablate.addons.post_training.warm_start",
    "lora": "ablate.addons.post_training.lora",
    "align": "ablate.addons.post_training.alignment.run",
    "trainer.diagnose.names": "ablate.diagnostics.extension",
    "evaluation.tasks": "ablate.addons.evaluation.extension",
}
"""Part of an experiment -> the module whose `EXTENSION` is its behaviour, in the order in which they are called."""


class Extension:
    """The behaviour that a part of an experiment adds to its run. By default each method adds nothing; a package
    overrides those that it needs."""

    precedes_validation = False
    """Whether its callbacks run before the validation of an update."""

    def validate(self, model: Model, experiment: Experiment) -> list[Problem]:
        """Return the problems of the part with `model`, which may be on the meta device."""
        return []

    def restrict(self, model: Model, experiment: Experiment) -> None:
        """Restrict the trained parameters of `model`: freeze parameters, or add adapters."""

    def pin(self, experiment: Experiment, classes: int, shape: tuple[int, ...]) -> Experiment:
        """Return `experiment` with the SHA-256 of the weights that it starts from. Raises AblateError if they do not
        fit."""
        return experiment

    def describe_source(self, run: str) -> dict[str, Any]:
        """Return the fields that are recorded with the name of the `run` that the part starts from."""
        return {}

    def fill(self, model: Model, experiment: Experiment, recipes: Any) -> set[int]:
        """Load the initial weights into `model`, by `recipes` if it is on the meta device; return the ids of the loaded
        parameters."""
        return set()

    def merge(
        self, build: Callable[[], Model], experiment: Experiment, state: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return `state`, the weights of a run, converted to the plain model that `build` returns on the meta
        device."""
        return dict(state)

    def build_callbacks(self, task: Any, corpus: Corpus, curves: Any) -> list[Any]:
        """Return Lightning callbacks (`ablate.training.callbacks.RunCallback`) for the training of `task`."""
        return []

    def count_items(self, experiment: Experiment) -> dict[str, int]:
        """Return the metrics that the part adds to validations -> the number of items, such as questions, that each is
        computed from. Raises AblateError if they cannot be computed."""
        return {}

    def build_procedure(self) -> Any:
        """Return the `Procedure` (of `ablate.training.procedures`) that replaces training, or None."""
        return None

    def gather_facts(self) -> dict[str, str]:
        """Return tags of the MLflow run, such as versions of libraries."""
        return {}


def load_extensions(experiment: Experiment) -> Iterator[Extension]:
    """Yield the extensions of the parts that `experiment` sets. Raises ConfigError if a package is not installed."""
    for part in EXTENSIONS:
        if attrgetter(part)(experiment):
            yield load_extension(part)


def load_extension(part: str) -> Extension:
    """Return the extension of a part, a key of `EXTENSIONS`. Raises ConfigError if its package is not installed."""
    name = EXTENSIONS[part]
    try:
        extension: Extension = import_module(name).EXTENSION
    except ModuleNotFoundError as error:
        if not name.startswith(error.name or "-"):
            raise
        raise ConfigError(
            [Problem(part, f"needs the package {name.rpartition('.')[0]}, which is not installed")]
        ) from None
    return extension


def restrict(model: Model, experiment: Experiment) -> None:
    """Restrict the trained parameters of `model` as `experiment` says. Raises ConfigError if it names parts that the
    model does not have."""
    for extension in load_extensions(experiment):
        if problems := extension.validate(model, experiment):
            raise ConfigError(problems)
        extension.restrict(model, experiment)
