"""Loading sweep files for the command line: the size, the scale and `key=value` settings, applied in this order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.config.errors import AblateError, SweepError
from ablate.config.formatting import join_words
from ablate.config.yaml import read_yaml
from ablate.sweeps.spec.references import list_earlier_sweeps
from ablate.sweeps.spec.scale import format_suffix, note_changes, scale_sweep
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.spec.trees import apply_overrides, load_trees


def load_sweeps(
    file: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    size: str | None = None,
    factor: float = 1.0,
    model: bool = False,
) -> list[Sweep]:
    """Return the sweeps of a file: one for each of its sizes, smallest model first, or of its stages in their order; or
    only that of the size or stage `size`.

    Each is scaled by `factor`, with `model` its model too (see `scale`); what `overrides` say is then set
    as it stands, so a length given there is the length that is run. Raises ConfigError with all problems of the first
    sweep that has any.
    """
    sweeps, divided = [], load_trees(file, overrides, size)
    for at, tree in divided.trees.items():
        source, own, full = divided.source(file, at), divided.overrides(overrides or {}, at), None
        if factor != 1:
            full = Sweep.from_tree(tree, source)
            tree = scale_sweep(full, factor, model).to_tree()
        tree = apply_overrides(Sweep, tree, own, source)
        spec = Sweep.from_tree(divided.add_family(tree, overrides or {}, at), source)
        sweeps.append(note_changes(spec, full, own) if full else spec)
    return sorted(sweeps, key=_count_parameters) if divided.word == "size" else sweeps


def add_earlier_sweeps(
    file: str | Path, specs: Sequence[Sweep], overrides: Mapping[str, Any], *, factor: float = 1.0, model: bool = False
) -> list[Sweep]:
    """Return `specs`, each preceded by the sweeps that its arms start from, which are looked up by name in the folder
    of `file`. Scale and `overrides` hold for those as well, but for the name and, in other files, for what is for a
    stage and for the adapters (`lora`), which go on what the earlier ones have trained."""
    same = {path: value for path, value in overrides.items() if path != "name"}
    shared = {path: value for path, value in overrides.items() if is_shared(path)}
    suffix = format_suffix(factor, model)
    ordered: dict[str, Sweep] = {}

    def add(spec: Sweep, waiting: tuple[str, ...]) -> None:
        for name in list_earlier_sweeps(spec):
            if name in waiting:
                raise SweepError(f"The sweeps {join_words(waiting)} would wait for each other.")
            if name not in ordered and (place := _find_file(Path(file), name.removesuffix(suffix))):
                where, size = place
                settings = same if where == Path(file) else shared
                (before,) = load_sweeps(where, settings, size=size, factor=factor, model=model)
                add(before, (*waiting, name))
        ordered[spec.name] = spec

    for spec in specs:
        add(spec, (spec.name,))
    return list(ordered.values())


def is_shared(path: str) -> bool:
    """Return whether a setting of the command line applies to the sweeps of other files that a sweep starts from."""
    part = path.removeprefix("search.").removeprefix("experiment.").partition(".")[0]
    return part not in ("name", "lora", "stages")


def _find_file(file: Path, name: str) -> tuple[Path, str | None] | None:
    """The file of the same folder that has the sweep `name`, and of a file with sizes or stages which."""
    for path in sorted(file.parent.glob("*.yaml")):
        try:
            tree = read_yaml(path)
        except AblateError:  # which is no matter of this sweep
            continue
        parts = tree.get("sizes") or tree.get("stages") or {}
        if tree.get("name") == name and not parts:
            return path, None
        if part := next((part for part in parts if f"{tree.get('name')}-{part}" == name), None):
            return path, part
    return None


def _count_parameters(spec: Sweep) -> int:
    return spec.base(next(iter(spec.all_arms))).model.layer_parameters()
