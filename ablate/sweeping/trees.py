"""A sweep file as nested mappings: the sweeps of its sizes, and what the command line sets over it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ablate.config import Experiment, Tree, load_plugins, merge, problems_of
from ablate.errors import ConfigError, Problem, did_you_mean
from ablate.reading import read_yaml
from ablate.registry import Config
from ablate.sweeping.parts import Size, Sizes

OVERRIDABLE = (
    "name", "plugins", "objective", "budget", "sampler", "pruner", "confirm", "baseline", "factor", "confounds",
    "checkpoints",
)  # fmt: skip
"""The parts of a sweep that the command line can set; every other path is one of the base experiment."""


def overridden(cls: type[Config], tree: Mapping[str, Any], overrides: Mapping[str, Any], source: str) -> Tree:
    """The sweep `tree`, a mapping of the class `cls`, with `overrides` over it: dotted paths of the base experiment or
    of the parts of the sweep in OVERRIDABLE, and `search.PATH`, what is searched for a path in all arms; the name has
    been set before (`load_trees`)."""
    searched = {k.removeprefix("search."): v for k, v in overrides.items() if k.startswith("search.")}
    overrides = {k: v for k, v in overrides.items() if not k.startswith("search.")}
    own = {k: v for k, v in overrides.items() if k.partition(".")[0] in OVERRIDABLE and k != "name"}
    inner = {k.removeprefix("experiment."): v for k, v in overrides.items() if k not in own and k != "name"}
    base = tree.get("experiment")
    load_plugins(tree, base if isinstance(base, Mapping) else {}, own, inner, source=source)
    made = dict(tree)
    if searched:
        made["search"] = {**(tree.get("search") or {}), **searched}
    if inner and (base is None or isinstance(base, Mapping)):
        made["experiment"] = merge(Experiment, merge(Experiment, {}, base or {}), inner)
    for part in OVERRIDABLE:
        given = {k: v for k, v in own.items() if k.partition(".")[0] == part}
        if given:
            made |= merge(cls, {part: made[part]} if part in made else {}, given)
    return made


def load_trees(file: str | Path, overrides: Mapping[str, Any] | None, size: str | None) -> dict[str, Tree]:
    """Size -> the sweep of that size in a YAML file, or of `size` alone, before any of the `overrides` but the name.
    Raises ConfigError."""
    tree, source = read_yaml(Path(file)), str(file)
    if "name" in (overrides or {}):
        tree = {**tree, "name": (overrides or {})["name"]}
    trees = sized(tree, source)
    if size is None:
        return trees
    if size not in trees or not size:
        known = [name for name in trees if name]
        text = f"no such size. Accepted: {', '.join(known)}." if known else "the file has no sizes; leave it out"
        raise ConfigError([Problem("--size", text + did_you_mean(size, known), size)], source)
    return {size: trees[size]}


def source_of(file: str | Path, size: str) -> str:
    """What messages call the sweep of a size in a file."""
    return f"{file}, size {size}" if size else str(file)


def sized(tree: Mapping[str, Any], source: str) -> dict[str, Tree]:
    """Size -> the sweep of that size, called NAME-SIZE, which knows of no others. {"": tree} of a file without sizes.

    The settings of a size go over the base experiment; the parts of a sweep that it gives replace those of the file; of
    the published figures it has its own and those of no size. Raises ConfigError.
    """
    plain = {key: value for key, value in tree.items() if key != "sizes"}
    if not tree.get("sizes"):
        return {"": plain}
    given = {"sizes": tree["sizes"]}
    try:
        sizes = Sizes.model_validate(given).sizes
    except ValidationError as error:
        raise ConfigError(problems_of(Sizes, given, error), source) from None
    base, quoted = plain.get("experiment") or {}, plain.get("published") or []
    if not isinstance(base, Mapping) or not isinstance(quoted, list):
        return {"": plain}  # which tells what is wrong with it
    if problems := list(_strangers(quoted, sizes)):
        raise ConfigError(problems, source)
    load_plugins(tree, base, source=source)
    found = {}
    for name, size in sizes.items():
        settings = merge(Experiment, merge(Experiment, {}, base), size.settings)
        own = {key: value for key, value in (tree["sizes"][name] or {}).items() if key in Size.beside}
        figures = [_without_size(p) for p in quoted if _size_of(p) in (None, name)]
        more = {"published": figures} if quoted else {}
        found[name] = {**plain, "name": f"{plain.get('name', '')}-{name}", "experiment": settings, **own, **more}
    return found


def _strangers(quoted: list[Any], sizes: Mapping[str, Size]) -> list[Problem]:
    """Published figures of sizes that there are not."""
    return [
        Problem(f"published.{i}.size", f"is no size. Accepted: {', '.join(sizes)}.{did_you_mean(size, sizes)}", size)
        for i, entry in enumerate(quoted)
        if isinstance(size := _size_of(entry), str) and size not in sizes
    ]


def _size_of(entry: Any) -> Any:
    return entry.get("size") if isinstance(entry, Mapping) else None


def _without_size(entry: Any) -> Any:
    return {key: value for key, value in entry.items() if key != "size"} if isinstance(entry, Mapping) else entry
