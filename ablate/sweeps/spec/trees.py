"""A sweep file as nested mappings: the sweeps of its sizes or stages, and the overrides of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from ablate.config.base import Config
from ablate.config.building import describe_errors, load_plugins
from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.config.merging import Tree, merge
from ablate.config.yaml import read_yaml
from ablate.experiment.tree import Experiment, find_class
from ablate.sweeps.search.methods import return_method
from ablate.sweeps.spec.fields import SweepFields
from ablate.sweeps.spec.metrics_validation import drop_unreported
from ablate.sweeps.spec.parts import REPLACED, Division

OVERRIDABLE = (
    "name", "plugins", "design", "within", "objective", "budget", "sampler", "pruner", "confirm",
    "baseline", "factor", "confounds", "checkpoints", "settings_from",
)  # fmt: skip
"""The parts of a sweep that the command line can set; every other path belongs to the base experiment."""
IN_FILE = ("search", "fixed", "arms", "components", "published", "sizes")
"""The parts of a sweep that only its file can set."""


def apply_overrides(cls: type[SweepFields], tree: Mapping[str, Any], overrides: Mapping[str, Any], source: str) -> Tree:
    """Return the sweep `tree`, a mapping of the class `cls`, with `overrides` applied: dotted paths of the base
    experiment or of the parts of the sweep in OVERRIDABLE, and `search.PATH`, the values searched for a path in all
    arms; the name has been set before (`load_trees`)."""
    searched = {k.removeprefix("search."): v for k, v in overrides.items() if k.startswith("search.")}
    overrides = {k: v for k, v in overrides.items() if not k.startswith("search.")}
    own = {k: v for k, v in overrides.items() if k.partition(".")[0] in OVERRIDABLE and k != "name"}
    inner = {k.removeprefix("experiment."): v for k, v in overrides.items() if k not in own and k != "name"}
    base = tree.get("experiment")
    if problems := list(_check_parts(inner)):
        raise ConfigError(problems, "the command line")
    load_plugins(tree, base if isinstance(base, Mapping) else {}, own, inner, source=source)
    changed = dict(tree)
    if searched and (tree.get("search") is None or isinstance(tree["search"], Mapping)):
        changed = changed if "method" in searched else return_method(changed)
        changed["search"] = {**(changed.get("search") or {}), **searched}
    if inner and (base is None or isinstance(base, Mapping)):
        changed["experiment"] = find_class(base, inner).merge(base or {}, inner)
    for part in OVERRIDABLE:
        settings = {k: v for k, v in own.items() if k.partition(".")[0] == part}
        if settings:
            changed |= merge(cls, {part: changed[part]} if part in changed else {}, settings)
    return drop_unreported(cls, tree, changed) if inner or searched or own else changed


def _check_parts(settings: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each of the `settings` of the base experiment that is a part of the sweep instead, which only
    the file can set, or looks like one that the command line can set."""
    for path, value in settings.items():
        part = path.partition(".")[0]
        if part in IN_FILE:
            text = "only the file can set this; a searched path alone is set by search.optimizer.lr=[1e-3,3e-3]"
            yield Problem(path, text)
        elif part not in Experiment.model_fields and (hint := did_you_mean(part, OVERRIDABLE)):
            yield Problem(path, f"unknown key.{hint}", value)


class Divided(NamedTuple):
    """A file divided into its sweeps."""

    word: str
    """The kind of its parts: size or stage; "" if the file is one sweep."""
    trees: dict[str, Tree]
    """Name -> the sweep, called NAME-SIZE or NAME-STAGE. {"": tree} for a file with one sweep."""
    others: dict[str, Tree] = {}
    """The sweeps of the file that were not requested."""

    def source(self, file: str | Path, at: str) -> str:
        """Return the name of the sweep `at` in messages."""
        return f"{file}, {self.word} {at}" if at else str(file)

    def overrides(self, overrides: Mapping[str, Any], at: str) -> dict[str, Any]:
        """Return the `overrides` that apply to the sweep `at`: stages.NAME.PATH only for that stage, with precedence
        over all others."""
        own = f"{STAGES}{at}."
        shared = {path: value for path, value in overrides.items() if not path.startswith(STAGES)}
        return shared | {path.removeprefix(own): v for path, v in overrides.items() if at and path.startswith(own)}

    def add_family(self, tree: Tree, overrides: Mapping[str, Any], at: str) -> Tree:
        """Return `tree`, the sweep `at`, with the number of comparisons of the file's other sweeps under `overrides`:
        with a baseline, on three or more fresh seeds."""
        trees = {**self.others, **self.trees}
        counts = [_count_comparisons(trees[name], self.overrides(overrides, name)) for name in trees if name != at]
        return {**tree, "family": sum(counts)} if sum(counts) else tree


MAKES_ARMS = ("components", "design", "within")
"""The parts of a sweep that the arms of a size or stage replace."""
STAGES = "stages."
"""The prefix of a command-line setting for a single stage."""


def load_trees(file: str | Path, overrides: Mapping[str, Any] | None, parts: Sequence[str] = ()) -> Divided:
    """Return the sweeps in a YAML file, or only those of the sizes or stages `parts`, before any of the `overrides`
    except the name. Raises ConfigError."""
    tree, source, settings = read_yaml(Path(file)), str(file), overrides or {}
    if "name" in settings:
        same = (
            tree if parts else _rename_references(tree, str(tree.get("name")), str(settings["name"]))
        )  # a stage alone goes on
        tree = {**same, "name": settings["name"]}
    divided = divide(tree, source)
    known = [name for name in divided.trees if name]
    problems = [
        Problem(path, f"there is no such stage. Accepted: {', '.join(known)}." if known else "the file has no stages")
        for path in settings
        if path.startswith(STAGES) and (divided.word != "stage" or path.split(".")[1] not in known)
    ]
    for part in (part for part in parts if part not in known):
        text = f"no such {divided.word}. Accepted: {', '.join(known)}.{did_you_mean(part, known)}"
        problems.append(Problem("--size", text if known else "the file has no sizes; omit it", part))
    if problems:
        raise ConfigError(problems, source)
    if not parts:
        return divided
    others = {name: tree for name, tree in divided.trees.items() if name not in parts}
    return divided._replace(trees={name: tree for name, tree in divided.trees.items() if name in parts}, others=others)


def _count_comparisons(tree: Tree, overrides: Mapping[str, Any]) -> int:
    """Return the number of comparisons of one sweep; 0 if its arms or its `confirm` are invalid, which is reported
    separately."""
    settings = {path: value for path, value in overrides.items() if path.partition(".")[0] == "confirm"}
    confirm = tree.get("confirm") or {}
    try:
        parts = {key: overrides.get(key, tree.get(key)) for key in ("arms", "components", "design", "within", "target")}
        parts |= merge(SweepFields, {"confirm": confirm}, settings) if confirm or settings else {}
        if isinstance(parts.get("confirm"), Mapping) and parts["confirm"].get("at") == "grid":
            searched = {k.removeprefix("search."): v for k, v in overrides.items() if k.startswith("search.")}
            parts["search"] = {**(tree.get("search") or {}), **searched}
        given = {key: value for key, value in parts.items() if value is not None}
        counted = SweepFields.model_validate({"name": "unnamed", **given})
        baseline = overrides.get("baseline", tree.get("baseline"))
        if baseline in counted.own_arms:  # one for the whole file need not be an arm of each of its sweeps
            counted = counted.model_copy(update={"baseline": baseline})
        return counted.count_shared()
    except (ValidationError, ConfigError, ValueError, TypeError):
        return 0


def _rename_references(tree: Any, old: str, new: str) -> Any:
    """Return `tree` with `sweep:OLD-STAGE/ARM` renamed for the file name `new`."""
    stages = tree.get("stages")
    if not isinstance(stages, Mapping):
        return tree
    names = {f"sweep:{old}-{stage}": f"sweep:{new}-{stage}" for stage in stages}

    def rename(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: rename(inner) for key, inner in value.items()}
        if isinstance(value, str):
            title, slash, arm = value.partition("/")
            return f"{names.get(title, title)}{slash}{arm}"
        return [rename(inner) for inner in value] if isinstance(value, list) else value

    return rename(tree)


class Divisions(Config):
    """The part of a file that makes it several sweeps."""

    sizes: dict[str, Division] = {}
    """As in a sweep."""
    stages: dict[str, Division] = {}
    """As in a sweep."""


def divide(tree: Mapping[str, Any], source: str) -> Divided:
    """The sweeps of a file's mapping.

    The settings of a part go over the base experiment; the parts of a sweep that it gives replace those of the file; a
    size has its own published figures and those without a size. Raises ConfigError.
    """
    plain = {key: value for key, value in tree.items() if key not in Divisions.model_fields}
    there = [key for key in Divisions.model_fields if tree.get(key) not in (None, {})]
    if not there:
        return Divided("", {"": plain})
    if len(there) > 1:
        raise ConfigError([Problem("stages", "go without sizes: write a file for each size")], source)
    (key,) = there
    given = {key: tree[key]}
    try:
        parts: dict[str, Division] = getattr(Divisions.model_validate(given), key)
    except ValidationError as error:
        raise ConfigError(describe_errors(Divisions, given, error), source) from None
    base, quoted = plain.get("experiment") or {}, plain.get("published") or []
    if not isinstance(base, Mapping) or not isinstance(quoted, list):
        return Divided("", {"": plain})  # which reports the problem
    if key == "sizes" and (problems := list(_validate_figures(quoted, parts))):
        raise ConfigError(problems, source)
    load_plugins(tree, base, source=source)
    trees = {}
    for name, part in parts.items():
        settings = find_class(base, part.settings).merge(base, part.settings)
        own = {field: value for field, value in (tree[key][name] or {}).items() if field in REPLACED}
        shared = {field: value for field, value in plain.items() if own.get("arms") is None or field not in MAKES_ARMS}
        figures = [_drop_size(p) for p in quoted if _get_size(p) in (None, name)] if key == "sizes" else quoted
        more = {"published": figures} if quoted else {}
        trees[name] = {**shared, "name": f"{plain.get('name', '')}-{name}", "experiment": settings, **more, **own}
    return Divided(key.removesuffix("s"), trees)


def _validate_figures(quoted: list[Any], sizes: Mapping[str, Division]) -> list[Problem]:
    """Problems of published figures of unknown sizes."""
    return [
        Problem(f"published.{i}.size", f"is no size. Accepted: {', '.join(sizes)}.{did_you_mean(size, sizes)}", size)
        for i, entry in enumerate(quoted)
        if isinstance(size := _get_size(entry), str) and size not in sizes
    ]


def _get_size(entry: Any) -> Any:
    return entry.get("size") if isinstance(entry, Mapping) else None


def _drop_size(entry: Any) -> Any:
    return {key: value for key, value in entry.items() if key != "size"} if isinstance(entry, Mapping) else entry
