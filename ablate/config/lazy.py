"""Imports of heavy libraries: on first use, so that `ablate --help` and a mistyped option are answered at once."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any


@contextlib.contextmanager
def postpone_collection() -> Iterator[None]:
    """Leave out Python's search for garbage within: imports make a million objects, none of which is garbage, and the
    search takes a fifth of their time. Not for training, whose garbage may hold the memory of a device."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class LazyModule:
    """A module that is imported when one of its names is first used. A verb names such a module twice: under
    `TYPE_CHECKING`, for mypy and the import contracts, and as a LazyModule, for Python. A test compares the two.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        with postpone_collection():
            module = import_module(self.name)
        return getattr(module, attribute)


if TYPE_CHECKING:
    import torch as torch
    import torch.utils._pytree as pytree
else:
    torch, pytree = LazyModule("torch"), LazyModule("torch.utils._pytree")
