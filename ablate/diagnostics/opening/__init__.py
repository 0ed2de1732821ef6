"""Opening a model to measure it: a run, a checkpoint, `sweep:NAME/ARM`, `init:` any of these, `hf:NAME` or
`timm:NAME`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from ablate.diagnostics.opening.base import Opened, Opening
from ablate.diagnostics.opening.runs import open_arm, open_initial, open_run
from ablate.diagnostics.opening.timm_models import open_timm
from ablate.diagnostics.opening.transformers_models import open_transformers

OPENERS: dict[str, Callable[[str, Opening], Opened]] = {
    "sweep:": open_arm,
    "init:": open_initial,
    "hf:": open_transformers,
    "timm:": open_timm,
    "": open_run,
}
"""Prefix of a name -> the function that opens the model named after the prefix."""


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
