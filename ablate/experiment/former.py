"""Stored configurations with the defaults and the meanings of the time when they were written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.config.merging import Tree, merge
from ablate.data import data_kinds
from ablate.experiment.trainer import TrainerConfig
from ablate.experiment.tree import Experiment, fill_in
from ablate.models import models
from ablate.optim.optimizers import optimizers

PROFILED = 4
"""The last version of the defaults in which Admin was profiled by default, small_scaled rescaled every matrix, and
scaled_embedding was a larger start."""


def restore_former(tree: Mapping[str, Any], defaults: int = 1) -> Tree:
    """Return a stored configuration, resolved or the base of a sweep, with the defaults of the time when it was written
    (`Former`) for fields that it does not contain; `defaults` is the version of the defaults that it was written with,
    or an earlier one."""
    filled = fill_in(tree)
    data, trainer = filled.get("data", Experiment.model_fields["data"].default), filled.get("trainer") or {}
    kind = data_kinds.kind_of(data)
    parts = {"data": (kind.former if kind else {}, data), "trainer": (TrainerConfig.former, trainer)}
    former = {
        f"{part}.{name}": field.value
        for part, (fields, own) in parts.items()
        for name, field in fields.items()
        if defaults <= field.until and not (isinstance(own, Mapping) and name in own)
    }
    restored = merge(Experiment, merge(Experiment, {}, _drop_moments(tree)), former)
    return _restore_norms(restored, filled, defaults)


def restore_arm(base: Mapping[str, Any], settings: Mapping[str, Any], defaults: int) -> Tree:
    """Return the settings of an arm of a stored sweep, over the experiment `base`, as `restore_former` does."""
    merged = merge(Experiment, merge(Experiment, {}, base), settings)
    restored = _restore_norms(merged, fill_in(merged), defaults)
    changed = {part: restored[part] for part in ("norm", "init") if restored.get(part) != merged.get(part)}
    return {**{path: value for path, value in settings.items() if path.partition(".")[0] not in changed}, **changed}


def _drop_moments(tree: Mapping[str, Any]) -> Tree:
    """Return a stored configuration without betas and eps of an optimizer that has none: every kind had them once."""
    own = tree.get("optimizer")
    kind = optimizers.kind_of(own)
    if not isinstance(own, Mapping) or kind is None or kind.model_config.get("extra") == "allow":
        return dict(tree)
    former = {"betas", "eps"} - kind.model_fields.keys()
    return {**tree, "optimizer": {name: value for name, value in own.items() if name not in former}}


def _restore_norms(tree: Tree, filled: Tree, defaults: int) -> Tree:
    """Return `tree` with the placement and the initialisation in today's words for what they meant then."""
    if defaults > PROFILED:
        return tree
    parts = {}
    if "norm" in tree:
        parts["norm"] = _restore_admin(tree["norm"])
    if "init" in tree:
        parts["init"] = _restore_init(tree["init"], filled.get("model", Experiment.model_fields["model"].default))
    return {**tree, **parts}


def _restore_admin(norm: Any) -> Any:
    """Return a placement with the profile that Admin had by default, wherever Admin is in it."""
    if norm == "admin":
        return {"kind": "admin", "start": "profile"}
    if not isinstance(norm, Mapping):
        return norm
    own = {"start": "profile"} if norm.get("kind") == "admin" else {}
    return {**own, **{name: value if name == "kind" else _restore_admin(value) for name, value in norm.items()}}


def _restore_init(init: Any, model: Any) -> Any:
    """Return an initialisation by which the same weights are drawn. One that says embedding_std is of today."""
    own = {"kind": init} if isinstance(init, str) else init
    if not isinstance(own, Mapping) or "embedding_std" in own:
        return init
    if own.get("kind") == "small_scaled":
        small = (2 / (5 * models.parse(model).stack().hidden)) ** 0.5
        return {**own, "kind": "scaled", "std": small if own.get("std") is None else own["std"]}
    if own.get("kind") == "scaled_embedding":
        return {**own, "kind": "scaled", "embedding_std": (2 / 5) ** 0.5}
    return init
