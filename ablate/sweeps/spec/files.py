"""Loading sweep files for the command line: the size, the scale and `key=value` settings, applied in this order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.config.building import load_plugins
from ablate.config.errors import AblateError, ConfigError, Problem, SweepError
from ablate.config.formatting import join_words
from ablate.config.merging import Tree, adds_entry, iterate_leaves
from ablate.config.yaml import read_yaml
from ablate.experiment.tree import find_class
from ablate.sweeps.spec.audit import describe_arm
from ablate.sweeps.spec.references import list_earlier_sweeps
from ablate.sweeps.spec.scale import format_suffix, note_changes, scale_sweep
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.spec.trees import IN_FILE, OVERRIDABLE, STAGES, apply_overrides, load_trees

NOT_PASSED_ON = {*OVERRIDABLE, *IN_FILE, "stages", "warm_start", "lora", "align"} - {"plugins"}
"""The parts of the command line's settings that do not apply to the sweeps of other files that a sweep starts from:
parts of the sweep itself, and its use of the models of the earlier ones."""


def load_sweeps(
    file: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    size: str | Sequence[str] | None = None,
    factor: float = 1.0,
    model: bool = False,
) -> list[Sweep]:
    """Return the sweeps of a file: one for each of its sizes, smallest model first, or of its stages in their order; or
    only that of the size or stage `size`, or of several.

    Each is scaled by `factor`, with `model` its model too (see `scale`); what `overrides` say is then set
    as it stands, so a length given there is the length that is run. Raises ConfigError with all problems of the first
    sweep that has any.
    """
    divided = load_trees(file, overrides, [size] if isinstance(size, str) else size or ())

    def load(at: str, tree: Tree) -> Sweep:
        source, own, full = divided.source(file, at), divided.overrides(overrides or {}, at), None
        if factor != 1:
            full = Sweep.from_tree(tree, source)
            tree = scale_sweep(full, factor, model).to_tree()
        tree = apply_overrides(Sweep, tree, own, source)
        spec = Sweep.from_tree(divided.add_family(tree, overrides or {}, at), source)
        return note_changes(spec, full, own) if full else spec

    sweeps = {at: load(at, tree) for at, tree in divided.trees.items()}
    for (at, one), (other_at, other) in itertools.combinations(sweeps.items(), 2):
        if _describe(one) == _describe(other):
            text = f"{at} and {other_at} train the same. Remove one"
            raise ConfigError([Problem(f"{divided.word}s", text)], str(file))
    loaded = list(sweeps.values())
    if divided.word != "size" or not loaded[0].is_own:
        return loaded
    return sorted(loaded, key=lambda spec: spec.own_base(next(iter(spec.all_arms))).model.layer_parameters())


def list_sizes(file: str | Path, overrides: Mapping[str, Any] | None = None) -> tuple[str, dict[str, str]]:
    """Return the name of a file, and name of a sweep -> its size, of a file with sizes."""
    divided = load_trees(file, overrides)
    name = str((overrides or {}).get("name") or read_yaml(Path(file)).get("name"))
    return name, {f"{name}-{size}": size for size in divided.trees} if divided.word == "size" else {}


def _describe(spec: Sweep) -> dict[str, Any]:
    """Return the content of a sweep, apart from its name."""
    rest = {key: value for key, value in spec.to_tree().items() if key not in ("name", "family", "experiment", "arms")}
    plain = spec.without_grid()
    return {**rest, "arms": {arm: describe_arm(plain, arm) for arm in plain.all_arms}}


def add_earlier_sweeps(
    file: str | Path, specs: Sequence[Sweep], overrides: Mapping[str, Any], *, factor: float = 1.0, model: bool = False
) -> list[Sweep]:
    """Return `specs`, each preceded by the sweeps that its arms start from, which are looked up by name in the folder
    of `file`, at the same scale and with what `select_passed_on` leaves of the `overrides`."""
    suffix = format_suffix(factor, model)
    ordered: dict[str, Sweep] = {}

    def add(spec: Sweep, waiting: tuple[str, ...]) -> None:
        for name in list_earlier_sweeps(spec):
            if name in waiting:
                raise SweepError(f"The sweeps {join_words(waiting)} would wait for each other.")
            full = name.removesuffix(suffix)
            if name not in ordered and (place := _find_file(Path(file), full)):
                where, size = place
                settings = select_passed_on(file, full, overrides)
                (before,) = load_sweeps(where, settings, size=size, factor=factor, model=model)
                add(before, (*waiting, name))
        ordered[spec.name] = spec

    for spec in specs:
        add(spec, (spec.name,))
    return list(ordered.values())


def select_passed_on(file: str | Path, name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the `overrides` of the sweep in `file` that apply to the earlier sweep `name` too.

    For a stage of the same file: all but the name and what is for other stages. For a sweep of another file, which must
    train the same model on the same data: the settings of the experiment, except those that stand for one sweep alone
    (`NOT_PASSED_ON`), and those of a validation set or of downstream tasks that it does not have.
    """
    place = _find_file(Path(file), name)
    if place is None:
        return {}
    where, part = place
    if where == Path(file):
        others = [path for path in overrides if path.startswith(STAGES) and not path.startswith(f"{STAGES}{part}.")]
        return {path: value for path, value in overrides.items() if path != "name" and path not in others}
    leaves = {path.removeprefix("experiment."): value for path, value in iterate_leaves(overrides)}
    shared = {path: value for path, value in leaves.items() if path.partition(".")[0] not in NOT_PASSED_ON}
    (tree,) = load_trees(where, None, [part] if part else ()).trees.values()
    base = tree.get("experiment")
    load_plugins(tree, base if isinstance(base, Mapping) else {}, shared, source=str(where))
    cls = find_class(base)
    before = cls.merge(base if isinstance(base, Mapping) else {})
    after = cls.merge(before, shared)
    return {
        path: value
        for path, value in shared.items()
        if not adds_entry(cls, before, after, path.split("."))
        and (path.partition(".")[0] != "evaluation" or "evaluation" in before)
    }


def _find_file(file: Path, name: str) -> tuple[Path, str | None] | None:
    """Return the file of the same folder that has the sweep `name`, and which of its sizes or stages it is."""
    named_alike_first = sorted(file.parent.glob("*.yaml"), key=lambda path: (not name.startswith(path.stem), path))
    for path in named_alike_first:  # to read fewer
        try:
            tree = read_yaml(path)
        except AblateError:  # whose errors are not this sweep's
            continue
        parts = tree.get("sizes") or tree.get("stages") or {}
        if tree.get("name") == name and not parts:
            return path, None
        if part := next((part for part in parts if f"{tree.get('name')}-{part}" == name), None):
            return path, part
    return None
