"""Several mappings into one: nested or dotted, later ones over earlier, kinds before their fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin

from ablate.config import plugins
from ablate.config.base import Config, Kind
from ablate.config.registry import Registry

Tree = dict[str, Any]


def iterate_leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) of the leaves of nested mappings, including empty mappings. Of an instance of a
    configuration class, yield the fields that were set, and its kind.
    """
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Config):
            kind = {"kind": value.kind} if isinstance(value, Kind) else {}
            value = {**kind, **value.model_dump(mode="json", exclude_unset=True)}
        if isinstance(value, Mapping) and value:
            yield from iterate_leaves(value, f"{path}.")
        else:
            yield path, value


def merge(cls: type[Any], tree: Mapping[str, Any], update: Mapping[str, Any]) -> Tree:
    """Return `tree` with the nested or dotted `update` over it, for the configuration class `cls`.

    Kinds are set before the fields of their part, wherever they stand. A new kind drops the fields of the old kind and
    keeps those that both kinds inherit: `norm=post` over `norm: {kind: mix, alpha: 0.25, layer: rmsnorm}` leaves
    `{kind: post, layer: rmsnorm}`. A field drops those for which it is an alternative (`Config.replaces`): `files` over
    `{dataset: allenai/c4, subset: en}` leaves `{files: ...}`. null removes an entry of a mapping from names to parts;
    null or {} for the mapping removes all. `plugins` lists are concatenated.
    """
    result = _copy(tree)
    paths = [
        (path[:-1] if path[-1] == "kind" and len(path) > 1 and isinstance(value, str) else path, value)
        for path, value in ((key.split("."), value) for key, value in iterate_leaves(update))
    ]
    named = {tuple(path) for path, _ in paths}
    for path, value in sorted(paths, key=lambda item: (len(item[0]), find_registry(cls, result, item[0]) is None)):
        _assign(cls, result, path, value)
        if value:  # the fields for which this one is an alternative go, unless they are given with it
            *above, field = path
            part, inside = _find_part_at(cls, result, above)
            for other in _list_replaced(part, [field]):
                if (*above, other) not in named and isinstance(inside, dict):
                    inside.pop(other, None)
    if tree.get("plugins") and update.get("plugins"):
        result["plugins"] = plugins.merge_plugins(tree["plugins"], update["plugins"])
    return result


def _copy(tree: Mapping[str, Any]) -> Tree:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _assign(cls: type[Any] | None, tree: Tree, path: list[str], value: Any) -> None:
    key, rest = path[0], path[1:]
    registry, child = find_part(cls, tree, key)
    if isinstance(tree.get(key), str) and registry is not None:
        tree[key] = registry.expand(tree[key])
    if rest:
        before = tree.get(key)
        if not isinstance(before, dict):
            if before is not None and (registry is not None or _is_config(child)):
                return  # which is no part, for validation to report
            tree[key] = {}
        _assign(child, tree[key], rest, value)
    elif registry is not None and isinstance(value, str):
        before = tree.get(key)
        part: Tree = before if isinstance(before, dict) else {}
        fields = registry.expand(value)
        old, new = registry.kind_of(part), registry.kind_of(fields)
        if new is not old:
            kept = registry.list_kept(old, new)
            part = {k: v for k, v in part.items() if k in kept}
        replaced = _list_replaced(new, (field for field, given in fields.items() if given))
        tree[key] = {**{k: v for k, v in part.items() if k not in replaced}, **fields}
    elif isinstance(child, Each) and not value:
        tree[key] = {}
    elif isinstance(cls, Each) and value is None and key in tree:
        del tree[key]
    elif value != {} or (child is None and registry is None):
        tree[key] = value
    elif tree.get(key) is None and cls is not None and not isinstance(cls, Each):
        field = cls.model_fields.get(key)
        if field is not None and field.default is None:  # an empty mapping sets the part
            tree[key] = {}


def _list_replaced(cls: Any, fields: Iterable[str]) -> set[str]:
    """Return the fields of `cls` for which one of `fields` is an alternative."""
    known: Mapping[str, tuple[str, ...]] = getattr(cls, "replaces", {})
    return {other for field in fields for other in known.get(field, ())}


@dataclass(frozen=True)
class Each:
    """Stands for a class in annotations of a mapping from names to instances of `item`."""

    item: type[Any]


def find_part(cls: Any, tree: Mapping[str, Any], key: str) -> tuple[Registry[Any] | None, Any]:
    """Return the registry of field `key` of `cls`, if it has one, and the class that its value in `tree` selects."""
    if isinstance(cls, Each):
        return None, cls.item
    if cls is None:
        return None, None
    registry, child = _describe_field(cls, key)
    return registry, child if registry is None else registry.kind_of(tree.get(key) or {})


@cache
def _describe_field(cls: type[Any], key: str) -> tuple[Registry[Any] | None, Any]:
    """Return the registry of a field, or else the class of its values."""
    field = cls.model_fields.get(key)
    if field is None:
        return None, None
    registry = next((m for m in field.metadata if isinstance(m, Registry)), None)
    if registry is not None:
        return registry, None
    inner = field.annotation
    if get_origin(inner) is tuple:  # a list is given as a whole
        return None, None
    if get_origin(inner) is dict:
        return None, Each(item) if _is_config(item := get_args(inner)[1]) else None
    inner = next((member for member in get_args(inner) if _is_config(member)), inner)  # of a part that may be None
    return None, inner if _is_config(inner) else None


def _is_config(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Config)


def find_registry(cls: type[Any] | None, tree: Mapping[str, Any], path: list[str]) -> Registry[Any] | None:
    part, inside = _find_part_at(cls, tree, path[:-1])
    return find_part(part, inside, path[-1])[0]


def _find_part_at(cls: Any, tree: Mapping[str, Any], path: list[str]) -> tuple[Any, Mapping[str, Any]]:
    """Return the class of the part at `path` and its settings in `tree`."""
    for key in path:
        _, cls = find_part(cls, tree, key)
        tree = _number_items(tree.get(key))
    return cls, tree


def adds_entry(cls: Any, before: Mapping[str, Any], after: Mapping[str, Any], path: list[str]) -> bool:
    """Return whether the setting at `path`, which has changed the tree `before` into `after`, has added an entry to a
    mapping from names to parts."""
    for key in path:
        if isinstance(cls, Each) and key not in before:
            return True
        _, cls = find_part(cls, after, key)
        before, after = _number_items(before.get(key)), _number_items(after.get(key))
    return False


def iterate_paths(cls: type[Any], tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted paths that `cls` has, with the kinds that `tree` chooses."""
    for key in tree if isinstance(cls, Each) else (f.alias or name for name, f in cls.model_fields.items()):
        yield f"{prefix}{key}"
        _, child = find_part(cls, tree, key)
        if child is not None:
            yield from iterate_paths(child, _number_items(tree.get(key)), f"{prefix}{key}.")


def _number_items(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is, and anything else as an empty one."""
    return value if isinstance(value, Mapping) else {}
