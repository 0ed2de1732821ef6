"""Modules that are imported on first use, so that `ablate --help` and a mistyped option are answered at once."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """A module that is imported when one of its names is first used. A verb names such a module twice: under
    `TYPE_CHECKING`, for mypy and the import contracts, and as a LazyModule, for Python. A test compares the two.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self.name), attribute)
