"""Building an instance of a configuration class from mappings, with its plugins loaded first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ablate.config import plugins
from ablate.config.errors import ConfigError, Problem
from ablate.config.merging import Tree, merge
from ablate.config.messages import describe_errors


def build(cls: type[Any], *mappings: Mapping[str, Any], source: str) -> Any:
    """Return an instance of the configuration class `cls` from `mappings`, later ones over earlier."""
    load_plugins(*mappings, source=source)
    tree: Tree = {}
    for mapping in mappings:
        tree = merge(cls, tree, mapping)
    try:
        return cls.model_validate(tree)
    except ValidationError as error:
        problems = describe_errors(cls, tree, error)
        raise ConfigError([*problems, *_find_conflicts(cls, tree, problems)], source) from None


def _find_conflicts(cls: type[Any], tree: Tree, problems: Sequence[Problem]) -> list[Problem]:
    """Return the conflicts between fields in `tree` that the `problems` of single fields hide. The check runs without
    these fields. A conflict that names one of them is omitted, since the field's default may cause it.
    """
    paths = [re.sub(r"(\.kind|\.\d+)$", "", problem.path).split(".") for problem in problems]
    try:
        cls.model_validate(_leave_out(tree, paths))
    except ValidationError as error:
        names = re.compile("|".join(rf"\b{re.escape(path[-1])}\b" for path in paths))
        return [
            problem
            for problem in describe_errors(cls, tree, error)
            if not names.search(f"{problem.path} {problem.message}")
        ]
    return []


def _leave_out(tree: Mapping[str, Any], paths: Iterable[Sequence[str]]) -> Tree:
    """Return `tree` without the values at `paths`."""
    below: dict[str, list[Sequence[str]]] = {}
    for key, *rest in paths:
        below.setdefault(key, []).append(rest)
    return {
        key: _leave_out(value, below[key]) if key in below else value
        for key, value in tree.items()
        if key not in below or (isinstance(value, Mapping) and all(below[key]))
    }


def load_plugins(*mappings: Mapping[str, Any], source: str = "the configuration") -> None:
    """Load the `plugins` of all `mappings`, before one of their kinds is looked up. Raises ConfigError."""
    plugins.load(plugins.merge_plugins(*(mapping.get("plugins") for mapping in mappings)), source=source)
