"""Imports of heavy libraries, on first use, so that `ablate --help` and a mistyped option are answered at once; and
of libraries that only some verbs need, installed by the extras of pyproject.toml."""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import threading
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

from ablate.config.errors import AblateError


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


@contextlib.contextmanager
def postpone_imports() -> Iterator[None]:
    """Let `import MODULE` and `from PACKAGE import MODULE` within name a module that is imported when one of its names
    is first used; mypy and the import contracts read the statement as it stands. Classes and functions cannot be
    imported so, and `import A.B as C` is written `from A import B as C`."""
    original, here = builtins.__import__, threading.get_ident()

    def postpone(name: str, variables: Any = None, own: Any = None, names: Any = (), level: int = 0) -> Any:
        if threading.get_ident() != here:  # imports of other threads are left alone
            return original(name, variables, own, names, level)
        if not names and "." in name:
            raise ImportError(f"{name} cannot be postponed in this form: write from ... import ... as ...")
        return SimpleNamespace(**{part: LazyModule(f"{name}.{part}") for part in names}) if names else LazyModule(name)

    builtins.__import__ = postpone  # type: ignore[assignment]
    try:
        yield
    finally:
        builtins.__import__ = original


class LazyModule:
    """A module that is imported when one of its names is first used. Raises AblateError if it is of an addon that was
    deleted."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        try:
            with postpone_collection():
                module = import_module(self.name)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("ablate.addons"):
                raise
            raise AblateError(f"This needs the package {error.name}, which is not installed.") from None
        return getattr(module, attribute)


with postpone_imports():
    import torch as torch
    from torch.utils import _pytree as pytree  # noqa: F401


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
