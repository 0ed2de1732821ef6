"""Opening a model to measure it: a run, a checkpoint, `sweep:NAME/ARM`, `init:` any of these, `hf:NAME` or
`timm:NAME`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ablate.diagnostics.opening.base import Opened as Opened
from ablate.diagnostics.opening.base import Opening as Opening
from ablate.diagnostics.opening.libraries import open_timm, open_transformers
from ablate.diagnostics.opening.runs import open_run
from ablate.sweeps.spec.references import PREFIX

OPENERS: dict[str, Callable[[str, Opening], Opened]] = {
    "sweep:": lambda name, opening: open_run(PREFIX + name, opening),
    "init:": partial(open_run, initial=True),
    "hf:": open_transformers,
    "timm:": open_timm,
    "": open_run,
}
"""Prefix of a name -> the way to open the model that is named after it."""


def split_label(name: str) -> tuple[str, str]:
    """Return (LABEL or "", the rest) of the name of a model, which may start with LABEL=."""
    label, equals, rest = name.partition("=")
    if not equals or name.startswith(tuple(filter(None, OPENERS))) or os.path.exists(name):
        return "", name
    return label, rest


def open_model(name: str, opening: Opening) -> Opened:
    """Return the model with this name, which may start with LABEL=. Raises AblateError."""
    label, rest = split_label(name)
    prefix = next(prefix for prefix in OPENERS if rest.startswith(prefix))
    opened = OPENERS[prefix](rest.removeprefix(prefix), opening)
    return replace(opened, subject=replace(opened.subject, label=label)) if label else opened


def has_initial(name: str) -> bool:
    """Return whether the model with this name, without LABEL=, can be opened before its first update."""
    return not name.startswith(("init:", "hf:", "timm:"))
