"""Libraries that only some verbs need, installed by `pip install 'ablate[EXTRA]'`."""

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
        text = f"This needs the library {root}, which is not installed: pip install 'ablate[{extra}]'"
        raise AblateError(text) from None
