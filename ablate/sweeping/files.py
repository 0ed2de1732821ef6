"""Sweep files as the command line asks for them: the size, the scale and `key=value` over both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.sweeping.scale import scaled
from ablate.sweeping.spec import Sweep
from ablate.sweeping.trees import load_trees, overridden, source_of


def load_sweeps(
    file: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    size: str | None = None,
    factor: float = 1.0,
    model: bool = False,
) -> list[Sweep]:
    """The sweeps of a file: one for each of its sizes from the smallest model on, or that of `size`.

    Each is scaled by `factor`, with `model` its model too (`ablate.sweeping.scale`); what `overrides` say is then set
    as it stands, so a length given there is the length that is run. Raises ConfigError with all problems of the first
    sweep that has any.
    """
    sweeps = []
    for at, tree in load_trees(file, overrides, size).items():
        source = source_of(file, at)
        if factor != 1:
            tree = scaled(Sweep.from_tree(tree, source), factor, model).to_tree()
        sweeps.append(Sweep.from_tree(overridden(Sweep, tree, overrides or {}, source), source))
    return sorted(sweeps, key=_parameters) if len(sweeps) > 1 else sweeps


def _parameters(spec: Sweep) -> int:
    return spec.base(next(iter(spec.all_arms))).model.layer_parameters()
