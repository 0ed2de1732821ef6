"""Opening a model to measure it: a run, a checkpoint, `sweep:NAME/ARM`, `init:` any of these, `hf:NAME` or
`timm:NAME`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from ablate.diagnostics.opening.base import Opened as Opened
from ablate.diagnostics.opening.base import Opening as Opening
from ablate.diagnostics.opening.libraries import open_timm, open_transformers
from ablate.diagnostics.opening.runs import open_arm, open_initial, open_run


@dataclass(frozen=True)
class Opener:
    """How the models are opened whose names have a certain prefix."""

    open: Callable[[str, Opening], Opened]
    """Opens the model that is named after the prefix."""
    has_initial: bool = False
    """Whether `init:` before such a name is the model before its first update."""


OPENERS: dict[str, Opener] = {
    "sweep:": Opener(open_arm, has_initial=True),
    "init:": Opener(open_initial),
    "hf:": Opener(open_transformers),
    "timm:": Opener(open_timm),
    "": Opener(open_run, has_initial=True),
}
"""Prefix of a name -> how the model is opened."""


def split_label(name: str) -> tuple[str, str]:
    """Return (LABEL or "", the rest) of the name of a model, which may start with LABEL=."""
    label, equals, rest = name.partition("=")
    if not equals or name.startswith(tuple(filter(None, OPENERS))) or os.path.exists(name):
        return "", name
    return label, rest


def open_model(name: str, opening: Opening) -> Opened:
    """Return the model with this name, which may start with LABEL=. Raises AblateError."""
    label, rest = split_label(name)
    prefix = _find_prefix(rest)
    opened = OPENERS[prefix].open(rest.removeprefix(prefix), opening)
    return replace(opened, subject=replace(opened.subject, label=label)) if label else opened


def has_initial(name: str) -> bool:
    """Return whether the model before its first update can be opened of the model with this name, without LABEL=."""
    return OPENERS[_find_prefix(name)].has_initial


def _find_prefix(name: str) -> str:
    return next(prefix for prefix in OPENERS if name.startswith(prefix))
