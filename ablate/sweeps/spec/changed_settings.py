"""What the command line changed of a sweep besides its scale, so that its output can say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ablate.config.formatting import count_noun, format_setting, format_settings, join_words
from ablate.config.merging import Tree, find_registry, iterate_leaves
from ablate.experiment.tree import Experiment
from ablate.sweeps.search.space import format_entry
from ablate.sweeps.spec.sweep import Sweep

MOST_LISTED = 8
IGNORED = ("name", "plugins")
"""Parts of a sweep that are not settings of it."""


def list_changes(spec: Sweep, full: Sweep, overrides: Mapping[str, Any]) -> dict[str, str]:
    """Return dotted path -> how the `overrides` of the command line changed `full`, the sweep of the file, into
    `spec`: '8 instead of 512'; without those that changed nothing. Settings of an experiment are those of the first
    arm."""
    now, before = _build_tree(spec), _build_tree(full)
    changes: dict[str, str] = {}
    for path, _ in iterate_leaves(overrides):
        if path.partition(".")[0] not in IGNORED:
            changes |= _compare(now, before, path.removeprefix("experiment.").removesuffix(".kind"))
    return changes


def describe_changes(changes: Mapping[str, str], told: Iterable[str] = ()) -> str:
    """Return a sentence on `changes`, the first eight by name; '' if there are none but those `told` elsewhere."""
    listed = [f"{path} {change}" for path, change in changes.items() if path not in {*told}]
    more = [count_noun(len(listed) - MOST_LISTED, "other")] if len(listed) > MOST_LISTED else []
    return f"The command line set {join_words([*listed[:MOST_LISTED], *more])}." if listed else ""


def _build_tree(spec: Sweep) -> Tree:
    """Return a sweep and the settings of its first arm's experiment in one tree, as paths of the command line name
    them."""
    own = {key: value for key, value in spec.to_tree().items() if key not in ("experiment", "arms")}
    search = {"search": {path: format_entry(entry) for path, entry in spec.search.items()}}
    return {**own, **spec.base(next(iter(spec.all_arms))).to_tree(), **search}


def _compare(now: Tree, before: Tree, path: str) -> dict[str, str]:
    """Return path -> change, of the setting at `path`, or of those below it: of a part that is of another kind or
    preset, only that."""
    names = [_name_kind(tree, path) for tree in (now, before)]
    if names[0] != names[1]:
        return {path: _describe(names[0] or "null", names[1])}
    leaves, full = dict(iterate_leaves(now)), dict(iterate_leaves(before))
    return {
        key: _describe(format_setting(value), _format_below(full, key))
        for key, value in leaves.items()
        if (key == path or key.startswith(f"{path}.")) and (key not in full or value != full[key])
    }


def _describe(value: str, full: str | None) -> str:
    return value if full is None else f"{value} instead of {full}"


def _format_below(leaves: Mapping[str, Any], path: str) -> str | None:
    """Return the value at `path`, or those below it; None if there is none."""
    if path in leaves:
        return format_setting(leaves[path])
    below = {key.removeprefix(f"{path}."): value for key, value in leaves.items() if key.startswith(f"{path}.")}
    return format_settings(below, {}) or None


def _name_kind(tree: Tree, path: str) -> str | None:
    """Return the preset of the part at `path`, or else its kind; None for a path that is not a part with kinds. A
    preset that names a data set is that also at another length."""
    registry, part = find_registry(Experiment, tree, path.split(".")), tree
    if registry is None:
        return None
    for key in path.split("."):
        part = part.get(key) or {}
    for name, fields in registry.presets.items():
        named = {key: value for key, value in fields.items() if key != "kind" and not isinstance(value, (int, float))}
        compared = {"kind": fields["kind"], **named} if named else fields
        if all(part.get(key) == value for key, value in compared.items()):
            return name
    return part.get("kind")
