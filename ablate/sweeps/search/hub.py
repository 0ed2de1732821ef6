"""Samplers of OptunaHub, which are downloaded from GitHub and are code of other people.

A sampler is named with the commit that its code is taken from, so that what runs is what the sweep file says. Neither
reading a sweep file, a plan nor a report loads it: only a sweep that starts does.
"""

from __future__ import annotations

import functools
import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field

from ablate.config import calls
from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.config.extras import find_missing
from ablate.sweeps.search.optuna_classes import instantiate, list_parameters
from ablate.sweeps.search.samplers import SamplerConfig, samplers

if TYPE_CHECKING:
    from types import ModuleType

    from optuna.samplers import BaseSampler


@samplers.register
class HubSampler(SamplerConfig):
    """A sampler of OptunaHub; further keys are its arguments. Its code, written by other people, is downloaded and run
    when the sweep starts. Needs the package optunahub."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["optunahub"] = "optunahub"
    name: str = Field(pattern=r"^samplers/\w+$")
    """Its package in the registry, such as samplers/auto_sampler (https://hub.optuna.org)."""
    ref: str = Field(pattern="^[0-9a-f]{40}$")
    """The commit of https://github.com/optuna/optunahub-registry that its code is taken from, in full."""
    class_name: str | None = None
    """The class, if the package has several samplers."""

    def validate_arguments(self) -> list[Problem]:
        return find_missing("optunahub", "", "a sampler of OptunaHub")

    def prepare(self) -> None:
        """Download the sampler and check its arguments. Raises ConfigError."""
        if problems := self._check():
            raise ConfigError([problem.within("sampler") for problem in problems])

    def build(self, number: int) -> BaseSampler:
        classes = self._list_classes()
        cls = classes[self.class_name or next(iter(classes))]
        sampler: BaseSampler = instantiate(cls, **(self.model_extra or {}), seed=self.derive_seed(number))
        return sampler

    def describe(self) -> str:
        return f"{self.name} of OptunaHub at {self.ref[:7]}, whose code is run when the sweep starts"

    def _list_classes(self) -> dict[str, type[Any]]:
        """Return the samplers of the package by name; downloads and runs it."""
        from optuna.samplers import BaseSampler

        module = _load(self.name, self.ref)
        offered = {name: getattr(module, name) for name in getattr(module, "__all__", vars(module))}
        return {
            name: cls
            for name, cls in offered.items()
            if inspect.isclass(cls) and issubclass(cls, BaseSampler) and not cls.__module__.startswith("optuna.")
        }

    def _check(self) -> list[Problem]:
        """Return what is wrong with the package, the class or the arguments."""
        if problems := self.validate_arguments():
            return problems
        try:
            classes = self._list_classes()
        except Exception as error:  # git's, GitHub's, or whatever the code of the package raises
            return [Problem("name", _explain_loading(self.ref, error), self.name)]
        wanted = next(iter(classes)) if self.class_name is None and len(classes) == 1 else self.class_name
        if wanted not in classes:
            accepted = f"Accepted: {', '.join(classes) or 'nothing'}.{did_you_mean(wanted or '', classes)}"
            return [Problem("class_name", f"must be one of the samplers of {self.name}. {accepted}", wanted)]
        if "seed" not in inspect.signature(classes[wanted]).parameters:
            text = f"{wanted} takes no seed, so that a sweep that is continued would propose other points"
            return [Problem("name", text, self.name)]
        known = {one.name: (Any, None) for one in list_parameters(classes[wanted])}
        if problems := calls.validate_arguments(wanted, calls.model_arguments(wanted, known), self.model_extra or {}):
            return problems
        try:
            self.build(0)
        except Exception as error:  # whatever it raises: it is about what was given
            return [Problem("", f"{wanted} refuses its arguments: {error}", self.model_extra)]
        return []


@functools.lru_cache
def _load(name: str, ref: str) -> ModuleType:
    """Return the module of a package of the hub, from the cache of optunahub or from GitHub."""
    module: ModuleType = import_module("optunahub").load_module(name, ref=ref)
    return module


def _explain_loading(ref: str, error: Exception) -> str:
    """Return why a package of the hub cannot be used, in one line."""
    if isinstance(error, ModuleNotFoundError):
        return f"needs the Python module {error.name}, which is not installed. Most are by: pip install {error.name}"
    last = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()  # of git: what it said
    return f"cannot be loaded from GitHub at the commit {ref[:7]}, which needs a network on first use: {last}"
