"""The interface of a check, and running all checks of a kind."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ablate.config import plugins
from ablate.config.errors import AblateError, ConfigError, Problem, did_you_mean
from ablate.config.registry import Registry

ROOMS = ("norms", "placements", "initialisations", "models", "data", "tasks", "optimizers")
"""The files of checks, in the order in which they run."""


@dataclass(frozen=True)
class Finding:
    """The result of one check of one kind."""

    part: str
    """The name of its registry, such as "placement"."""
    kind: str
    check: str
    passed: bool | None
    """None: the check does not apply."""
    reason: str = ""
    """The reason why it failed or does not apply; for a passed check, the measured value."""


class CheckFailedError(Exception):
    """A kind does not do what it says; the message says where."""


class CheckSkippedError(Exception):
    """A check does not apply to a kind; the message says why."""


Settings = Mapping[str, Any]
"""Settings of an experiment that a check adds to its own: dotted path -> value."""
Check = Callable[[str, Settings], str | None]
"""Name of a kind, settings -> a measured value worth telling, if any. Raises CheckFailedError or CheckSkippedError."""

_UNCHECKED = "this registry has no checks: training shows what does not work"
_CHECKS: dict[str, dict[str, Check]] = {}


def add_check(part: str, name: str) -> Callable[[Check], Check]:
    """Return a decorator that adds a check called `name` of the registry `part`."""

    def add(function: Check) -> Check:
        _CHECKS.setdefault(part, {})[name] = function
        return function

    return add


def list_checks(part: str) -> dict[str, Check]:
    """Return name -> check of a registry, in the order in which they run."""
    for room in ROOMS:
        import_module(f"{__package__}.{room}")
    return _CHECKS.get(part, {})


def check_kinds(kinds: Mapping[str, list[str]], settings: Settings) -> Iterator[Finding]:
    """Yield the findings of the checks of `kinds`: name of a registry -> names of kinds."""
    for part, names in kinds.items():
        checks = list_checks(part)
        for kind in names:
            if not checks or kind not in Registry.all[part]:
                yield Finding(part, kind, "registered", None, "a preset; check its kind" if checks else _UNCHECKED)
                continue
            for name, function in checks.items():
                yield _run(part, kind, name, function, settings)


def check(what: str, settings: Settings) -> Iterator[Finding]:
    """Return the findings of everything that a plugin, the file `what`, registers; or of one kind, PART:KIND. Raises
    ConfigError if the file cannot be loaded or registers nothing, or if there is no such kind."""
    import_module("ablate.experiment.tree")  # fills the registries
    part, _, kind = what.partition(":")
    if what.endswith(".py") or not kind:
        return check_kinds(list_registered(what), {"plugins": [what], **settings})
    parts = {registry.slug: registry for registry in Registry.all.values()}
    if part not in parts:
        text = f"no such part. Accepted: {', '.join(parts)}.{did_you_mean(part, parts)}"
        raise ConfigError([Problem("", text, part)], "the command line")
    if kind not in parts[part]:
        text = f"no such {parts[part].name}. Accepted: {', '.join(parts[part])}.{did_you_mean(kind, parts[part])}"
        raise ConfigError([Problem("", text, kind)], "the command line")
    return check_kinds({parts[part].name: [kind]}, settings)


def list_registered(file: str) -> dict[str, list[str]]:
    """Return name of a registry -> names of the kinds and presets that a plugin registers. Raises ConfigError if it
    cannot be loaded or registers nothing."""
    module = plugins.load([file])[file].module
    return {
        part: [name for name in registry.names if registry.find_module(name) == module]
        for part, registry in Registry.all.items()
    }


def _run(part: str, kind: str, name: str, function: Check, settings: Settings) -> Finding:
    """Return the finding of one check; whatever the kind's code raises is a failure."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Finding(part, kind, name, True, function(kind, settings) or "")
    except CheckSkippedError as reason:
        return Finding(part, kind, name, None, str(reason))
    except (CheckFailedError, AblateError) as error:
        return Finding(part, kind, name, False, str(error))
    except Exception as error:
        logging.getLogger(__name__).debug("%s %s: %s", part, kind, name, exc_info=True)
        lines = str(error).strip().splitlines() or [""]
        return Finding(part, kind, name, False, f"{type(error).__name__}: {lines[0]}")
