"""The callbacks and loggers that an experiment names: Lightning's own by their names, and classes of its plugins."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.config import plugins
from ablate.config.errors import Problem, did_you_mean
from ablate.experiment.tree import Experiment

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from lightning.pytorch.loggers import Logger

_BASES = {"callbacks": "Callback", "loggers": "Logger"}
"""Field of the trainer, and module of `lightning.pytorch` -> the class there that its classes inherit."""


def build_callbacks(experiment: Experiment) -> list[Callback]:
    """Return the callbacks of `trainer.callbacks`, in their order."""
    return [_find_class("callbacks", one.kind, experiment)(**one.arguments) for one in experiment.trainer.callbacks]


def build_loggers(experiment: Experiment, run_id: str, updates: int) -> list[Logger]:
    """Return the loggers of `trainer.loggers`, with the settings of the run. They write to `mlruns/logs`, under the id
    of the run, unless their arguments say otherwise. A run that goes on after some `updates` begins another log there:
    Lightning's CSVLogger would delete the first one."""
    version = f"{run_id}-from-{updates}" if updates else run_id
    flat = experiment.flat()
    settings = {path: tracking.redact(value) if isinstance(value, str) else value for path, value in flat.items()}
    built: list[Logger] = []
    for one in experiment.trainer.loggers:
        cls = _find_class("loggers", one.kind, experiment)
        place = {"save_dir": tracking.open_folder("logs"), "version": version}
        known = inspect.signature(cls).parameters
        built.append(cls(**{name: value for name, value in place.items() if name in known} | one.arguments))
        built[-1].log_hyperparams(settings)
    return built


def check_named(experiment: Experiment) -> list[Problem]:
    """Return the problems with the names of callbacks and loggers, and with the names of their arguments."""
    problems = []
    for part in _BASES:
        for number, one in enumerate(getattr(experiment.trainer, part)):
            try:
                cls = _find_class(part, one.kind, experiment)
                signature = inspect.signature(cls)  # a logger gets its place besides
                (signature.bind if part == "callbacks" else signature.bind_partial)(**one.arguments)
            except (LookupError, TypeError) as error:
                problems.append(Problem(f"trainer.{part}.{number}", f"{one.kind}: {error}"))
    return problems


def _find_class(part: str, name: str, experiment: Experiment) -> type[Any]:
    """Return the class of that name. Raises LookupError. No module is imported by its name: the class is Lightning's,
    or in a plugin, which was loaded with the experiment."""
    home = import_module(f"lightning.pytorch.{part}")
    module, _, last = name.rpartition(".")
    found = getattr(home, last, None) if module in ("", home.__name__) else plugins.find(name, experiment.plugins)
    if isinstance(found, type) and issubclass(found, getattr(home, _BASES[part])):
        return found
    text = f"is neither a class of {home.__name__} nor FILE.CLASS of a plugin, which must inherit its {_BASES[part]}"
    raise LookupError(f"{text}.{did_you_mean(name, home.__all__)}")
