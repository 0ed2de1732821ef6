"""Libraries that only some verbs need, installed by the extras of pyproject.toml."""

from __future__ import annotations

import importlib
from types import ModuleType

from ablate.config.errors import AblateError


def import_library(name: str, extra: str) -> ModuleType:
    """Return the module `name`, imported. Raises AblateError with the command that installs its library."""
    root = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != root:
            raise
        text = f"This needs the library {root}, which is not installed. {describe_installation(extra)}"
        raise AblateError(text) from None


def describe_installation(extra: str) -> str:
    """Return the command that installs the libraries of an `extra`. The name `ablate` on the package index belongs to
    another project."""
    return f"Type, in the clone of Ablate: pip install '.[{extra}]'"
