"""The samplers and pruners of Optuna: which can work in a sweep, why others cannot, and which arguments each takes."""

from __future__ import annotations

import functools
import inspect
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ablate.config import calls
from ablate.config.errors import Problem
from ablate.sweeps.search.space import Range, Space

_JUDGES_ALONE = (
    "it judges a trial by itself, so that an arm whose loss begins higher or has a plateau would lose its search; take "
    "one that compares a trial with others of its arm, such as MedianPruner"
)
_REFUSED = {
    "BoTorchSampler": "it is in optuna-integration, with which it was never tried here; take GPSampler",
    "BruteForceSampler": "it ends Optuna's own loop, which a sweep does not use; take sampler: grid",
    "GridSampler": "its cells are not tried again if they fail; take sampler: grid",
    "PartialFixedSampler": "it needs another sampler in it; set what is fixed in the arm or the experiment",
    "PatientPruner": _JUDGES_ALONE,
    "ThresholdPruner": _JUDGES_ALONE,
    "WilcoxonPruner": "it tests results of independent problems, which the validations of one training are not",
}
"""Class -> why it cannot work here."""
_RANDOM_FIRST = "its first {} trials are random ({} by default)"
_UNLEARNING = {"QMCSampler", "RandomSampler"}
"""Samplers that do not learn from trials."""
_COMPLETED_ONLY = {"CmaEsSampler", "GPSampler", "NSGAIISampler", "NSGAIIISampler"}
"""Samplers that do not learn from pruned trials."""
_LIMITS = {
    "CmaEsSampler": "searches two or more ranges, no lists",
    "GPSampler": _RANDOM_FIRST.format("n_startup_trials", 10),
    "NSGAIISampler": _RANDOM_FIRST.format("population_size", 50),
    "NSGAIIISampler": _RANDOM_FIRST.format("population_size", 50),
    **dict.fromkeys(_UNLEARNING, "does not learn from trials"),
    "TPESampler": _RANDOM_FIRST.format("n_startup_trials", 10),
}
"""Class -> what it cannot do, or does only later."""
_ADAPTED = {
    "CmaEsSampler": "ablate.sweeps.search.adapted_samplers.NumberedCmaEs",
    "GPSampler": "ablate.sweeps.search.adapted_samplers.CarefulGp",
    "HyperbandPruner": "ablate.sweeps.search.fair_pruners.FairHyperband",
    "QMCSampler": "ablate.sweeps.search.adapted_samplers.NumberedQmc",
    "TPESampler": "ablate.sweeps.search.adapted_samplers.ThriftyTpe",
}
"""Class -> what stands for it here."""
NUMBERED = {"QMCSampler"}
"""Samplers that are one sequence of points, and take the number of the trial besides a seed."""
_UNUSED = {"seed", "constraints_func", "warn_independent_sampling", "warn_asynchronous_seeding"}
"""Arguments that the sweep sets, or that have no place in one."""
_PLAIN = {"int": int, "float": float, "bool": bool, "str": str, "None": None}
"""Types that a configuration can hold, as Optuna's annotations name them."""


@dataclass(frozen=True)
class Entry:
    """One class."""

    cls: type[Any] | None
    """None: of a package that is not there."""
    refused: str | None
    """Why it cannot work here; None: it can."""
    limit: str
    """What it cannot do, or does only later."""

    def describe(self) -> str:
        """Return a line about it."""
        text = calls.describe_class(self.cls) if self.cls else ""
        limits = [self.limit] if self.limit else []
        if self.cls and not learns_from_pruned(self.cls.__name__):
            limits.append("does not learn from pruned trials")
        return f"{text}: {'; '.join(limits)}" if limits else text


@dataclass(frozen=True)
class Package:
    """`optuna.samplers` or `optuna.pruners`."""

    name: str
    """samplers or pruners."""
    base: str
    """The class that all of its classes inherit."""

    @property
    def noun(self) -> str:
        """What one of its classes is."""
        return self.name.removesuffix("s")

    @functools.cached_property
    def entries(self) -> Mapping[str, Entry]:
        """All classes by name; imports Optuna."""
        module = import_module(f"optuna.{self.name}")
        base = getattr(module, self.base)
        elsewhere = {name: None for name in _REFUSED if name.endswith(self.noun.capitalize())}
        classes = {
            name: cls
            for name, cls in vars(module).items()
            if inspect.isclass(cls) and issubclass(cls, base) and not name.startswith("Base")
        }
        return {
            name: Entry(cls, _REFUSED.get(name), _LIMITS.get(name, ""))
            for name, cls in sorted({**elsewhere, **classes}.items())
        }

    def find(self, name: str) -> Any:
        """Return the class `name`."""
        return getattr(import_module(f"optuna.{self.name}"), name)

    def find_adapted(self, name: str) -> Any:
        """Return the class `name`, or what stands for it here."""
        module, _, adapted = _ADAPTED.get(name, "").rpartition(".")
        return getattr(import_module(module), adapted) if module else self.find(name)

    def validate_name(self, name: str) -> list[Problem]:
        """Return what is wrong with the name of a class."""
        refused = {known: entry.refused for known, entry in self.entries.items()}
        return calls.validate_name(name, refused, "Optuna", self.noun, f"ablate list library-{self.name}")


PACKAGES = {"samplers": Package("samplers", "BaseSampler"), "pruners": Package("pruners", "BasePruner")}


def instantiate(cls: type[Any], **arguments: Any) -> Any:
    """Return an instance of a class of Optuna, without its warning that the class is an experimental one."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return cls(**arguments)


def list_parameters(cls: type[Any], taken: Iterable[str] = ()) -> list[inspect.Parameter]:
    """Return the parameters of a class that may be given, without those `taken` and those of no use."""
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    parameters = inspect.signature(cls).parameters
    return [one for name, one in parameters.items() if name not in {*_UNUSED, *taken} and one.kind not in several]


def model_arguments(cls: type[Any], taken: Iterable[str] = ()) -> type[calls.Arguments]:
    """Return the arguments of a class of Optuna that may be given. Those that are objects, such as another sampler, are
    left out."""
    fields = {}
    for one in list_parameters(cls, taken):
        names = one.annotation.split(" | ") if isinstance(one.annotation, str) else [one.annotation.__name__]
        if all(name in _PLAIN for name in names):
            kind = functools.reduce(operator.or_, [_PLAIN[name] for name in names])
            fields[one.name] = (kind, ... if one.default is one.empty else one.default)
    return calls.model_arguments(cls.__name__, fields)


def _need_numbers(space: Space) -> str | None:
    numbers = [path for path, entry in space.items() if isinstance(entry, Range)]
    if len(numbers) == len(space) >= 2:
        return None
    return f"searches two or more ranges, given {', '.join(space)}. Use tpe, or search another number"


_SPACES: dict[str, Callable[[Space], str | None]] = {"CmaEsSampler": _need_numbers}


def learns(name: str) -> bool:
    """Return whether the sampler `name` learns from trials."""
    return name not in _UNLEARNING


def learns_from_pruned(name: str) -> bool:
    """Return whether the sampler `name` learns from trials that a pruner has stopped, where it learns at all."""
    return name not in _COMPLETED_ONLY


def refuse_space(name: str, space: Space) -> str | None:
    """Return why the sampler `name` cannot search `space`; None: it can."""
    check = _SPACES.get(name)
    return check(space) if check else None
