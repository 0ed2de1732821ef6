"""Libraries that only some verbs need, installed by `pip install 'ablate[EXTRA]'`."""

from __future__ import annotations

import importlib
from types import ModuleType

from ablate.errors import AblateError


def library(name: str, extra: str) -> ModuleType:
    """The library `name`, imported. Raises AblateError with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name.partition(".")[0]:
            raise
        raise AblateError(
            f"This needs the library {name}, which is not installed: pip install 'ablate[{extra}]'"
        ) from None
