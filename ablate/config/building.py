"""An instance of a configuration class from mappings, with its plugins loaded first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ablate.config import plugins
from ablate.config.errors import ConfigError
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
        raise ConfigError(describe_errors(cls, tree, error), source) from None


def load_plugins(*mappings: Mapping[str, Any], source: str = "the configuration") -> None:
    """Load the `plugins` of all `mappings`, before a kind of theirs is looked up. Raises ConfigError."""
    plugins.load(plugins.merge_plugins(*(mapping.get("plugins") for mapping in mappings)), source=source)
