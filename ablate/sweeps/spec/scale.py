"""`--scale`: the same sweep at a share of its cost, marked as such in all output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ablate.config.errors import ConfigError, Problem
from ablate.config.formatting import count_noun, format_count, format_setting, format_settings, join_words
from ablate.config.merging import Tree, find_registry, iterate_leaves, merge
from ablate.experiment.tree import Experiment
from ablate.sweeps.search.space import format_entry
from ablate.sweeps.spec.parts import Arm, Scale
from ablate.sweeps.spec.references import rename_reference
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
    """Return a sentence on `changes`, the first eight by name; '' if there are none except those `told` elsewhere."""
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
    """Return path -> change, of the setting at `path`, or of those below it; for a part of another kind or preset, only
    that."""
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


Changes = Callable[[Experiment], Mapping[str, Any]]
"""From the experiment of an arm, dotted path -> its new value."""


def scale_sweep(spec: Sweep, factor: float, model: bool = False) -> Sweep:
    """Return `spec` with `factor` (above 0, at most 1) of its tokens, and with `model` also of its layers' parameters.

    Updates, the text that is tokenised for them, the intervals of validations and downstream tasks, a warm-up in
    updates shrink alike, so that warm-up and validations stay where they
    are in a run; batch, sequence length and what is searched stay. With `model` the layers keep `factor` of their
    weights by width at constant depth (`ModelConfig.narrowed`): tokens per parameter stay, and so do the layers that
    Mix-LN's alpha and the factors of LNS and DeepNorm mean. Embedding and head shrink with the width alone, as the
    vocabulary stays.

    The new sweep is called NAME-scaleX, or NAME-scaleX-model, and records the full setting in `scale`.

    Raises ConfigError for a factor out of range or of less than one update, a sweep that is scaled already and one that
    searches what would shrink.
    """
    if not 0 < factor <= 1:
        raise ConfigError([Problem("--scale", "must be above 0 and at most 1", factor)], f"sweep {spec.name}")
    if spec.scale:
        raise ConfigError([Problem("--scale", f"{spec.name} is scaled already")], f"sweep {spec.name}")
    if factor == 1:
        return spec
    shortest = min(spec.own_base(arm).trainer.max_steps for arm in spec.all_arms)
    if factor * shortest < 1 - 1e-9:  # rounded
        digits = 2 - math.floor(math.log10(1 / shortest))
        least = math.ceil(10**digits / shortest) / 10**digits  # rounded up to three digits
        text = f"leaves less than one of the {shortest:,} updates of a trial. Smallest accepted: {least:g}"
        raise ConfigError([Problem("--scale", text, factor)], f"sweep {spec.name}")
    first = spec.own_base(next(iter(spec.all_arms)))
    resized = resize(
        spec,
        lambda full: {
            **change_length(full, factor * full.trainer.max_steps),
            **(full.narrowed(factor) if model else {}),
        },
    )
    suffix = format_suffix(factor, model)
    plain = spec.without_grid()
    for arm in plain.all_arms:
        _rename_donors(resized, plain, arm, suffix)
    scale = Scale(
        factor=factor,
        model=model,
        max_steps=first.trainer.max_steps,
        items=first.items,
        parameters=first.model.layer_parameters(),
    )
    tree = {**resized, "name": f"{spec.name}{suffix}", "scale": scale.model_dump()}
    return Sweep.from_tree(tree, f"{spec.name} at scale {factor:g}")


def format_suffix(factor: float, model: bool = False) -> str:
    """Return the suffix of the name of a sweep at that scale; "" at the full one."""
    return "" if factor == 1 else f"-scale{factor:g}{'-model' if model else ''}"


def _rename_donors(tree: Tree, spec: Sweep, arm: str, suffix: str) -> None:
    """Change references of an arm to another sweep into references to that sweep at the same scale."""
    references = spec.base(arm).list_references().items()
    changes = {path: new for path, one in references if (new := rename_reference(one, spec, suffix)) is not None}
    if not changes:
        return
    if spec.designed and (set_there := [path for path in changes if path in spec.own_arms[arm].settings]):
        text = (
            "is set by components to an arm of a sweep that would be scaled too: name it in the arms of a file without"
        )
        raise ConfigError([Problem(path, text) for path in set_there], f"sweep {spec.name}")
    if arm not in tree.get("arms", {}):
        tree["experiment"] = merge(Experiment, tree["experiment"], changes)
        return
    beside = {key: value for key, value in tree["arms"][arm].items() if key in Arm.beside}
    settings = {key: value for key, value in tree["arms"][arm].items() if key not in Arm.beside}
    tree["arms"][arm] = {**merge(Experiment, merge(Experiment, {}, settings), changes), **beside}


def note_changes(spec: Sweep, full: Sweep, overrides: Mapping[str, Any]) -> Sweep:
    """Return `spec`, a share of `full`, with a note of what the `overrides` of the command line changed besides."""
    if spec.scale is None:
        return spec
    changed = list_changes(spec, full, overrides)
    return spec.model_copy(update={"scale": spec.scale.model_copy(update={"changed": changed})})


def describe_scale(spec: Sweep) -> str:
    """Return a note that `spec` is not the full setting, with the numbers if its experiments can be built; '' if it
    is."""
    full = spec.scale
    if full is None:
        return ""
    options = f"--scale {full.factor:g}{' --scale-model' if full.model else ''}"
    changes = describe_changes(full.changed, told=["trainer.max_steps", "trainer.max_tokens"])
    try:
        base = spec.own_base(next(iter(spec.all_arms)))
    except ConfigError:  # a plugin is missing
        return f"Not the full setting ({options}). {changes}".strip()
    options += " and further settings" if full.changed else ""
    text = (
        f"Not the full setting ({options}): a trial has {base.trainer.max_steps:,} of {full.max_steps:,} updates and "
        f"{format_count(base.items)} of {format_count(full.items)} {base.unit}"
    )
    if (parameters := base.model.layer_parameters()) != full.parameters:
        text += f", the layers have {format_count(parameters)} of {format_count(full.parameters)} parameters"
    return f"{text}. {changes}".strip()


def resize(spec: Sweep, changes: Changes) -> Tree:
    """Return `spec` as a tree in which `changes` are applied to every arm's experiment. Raises ConfigError if a setting
    to change is searched."""
    tree = spec.to_tree()
    spec = spec.without_grid()
    wanted = {arm: dict(changes(spec.own_base(arm))) for arm in spec.all_arms}
    for arm, values in wanted.items():
        if searched := [path for path in spec.space(arm) if path in values]:
            text = f"is searched for {arm}: a searched setting cannot be scaled as well"
            raise ConfigError([Problem(path, text) for path in searched], f"sweep {spec.name}")
    shared = wanted[next(iter(wanted))]
    tree["experiment"] = merge(Experiment, merge(Experiment, {}, tree.get("experiment", {})), shared)
    for arm, values in wanted.items():
        settings = spec.all_arms[arm].settings
        paths = {path for path, _ in iterate_leaves(merge(Experiment, {}, settings))}
        own = {path: value for path, value in values.items() if value != shared.get(path) or path in paths}
        if own and spec.designed:  # whose levels define the arms
            text = f"is set by components for {arm}: what they set cannot be scaled as well"
            raise ConfigError([Problem(path, text) for path in own], f"sweep {spec.name}")
        if own:
            beside = {key: value for key, value in tree["arms"][arm].items() if key in Arm.beside}
            tree["arms"][arm] = {**merge(Experiment, merge(Experiment, {}, settings), own), **beside}
    return tree


def change_length(full: Experiment, updates: float) -> dict[str, Any]:
    """Return dotted path -> value: the settings that make `full` about `updates` long, with warm-up, validations and
    downstream tasks at the same shares."""
    trainer, warmup = full.trainer, full.schedule.warmup_steps
    steps, factor = max(1, round(updates)), updates / trainer.max_steps
    changes: dict[str, Any] = {"trainer.max_steps": steps}
    if tokens := getattr(full.data, "train_tokens", None):  # the text that a run trains on, and no more
        changes["data.train_tokens"] = max(1, math.ceil(tokens * factor))
    if trainer.val_check_interval is not None:
        changes["trainer.val_check_interval"] = max(1, round(trainer.val_check_interval * factor))
    if full.evaluation.every_n_steps is not None:
        changes["evaluation.every_n_steps"] = max(1, round(full.evaluation.every_n_steps * factor))
    if warmup is not None:
        changes["schedule.warmup_steps"] = min(steps - 1, round(warmup * factor))
    return changes
