"""The sweep files that come with Ablate, by their names: `demo` is demo.yaml of `sweeps/`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.config.yaml import SUFFIXES, check_suffix, read_yaml

_PACKAGE = Path(__file__).parents[2]
FOLDER = next((folder for folder in (_PACKAGE / "sweep_files", _PACKAGE.parent / "sweeps") if folder.is_dir()), None)
"""The files of an installed wheel, or of a clone."""


def list_sweep_files() -> dict[str, Path]:
    """Return name -> file of the sweeps that come with Ablate; none in an installation without them."""
    return {file.stem: file for file in sorted(FOLDER.glob("*.yaml"))} if FOLDER else {}


def list_own_files() -> dict[str, Path]:
    """Return name -> file of `sweeps/` in the current folder."""
    return {file.stem: file for file in sorted(Path("sweeps").glob("*.yaml"))}


def list_parts(tree: Mapping[str, Any]) -> list[str]:
    """Return the names of the sizes or stages in the mapping of a sweep file; empty for one sweep."""
    parts = tree.get("sizes") or tree.get("stages")
    return [str(part) for part in parts] if isinstance(parts, Mapping) else []


def find_sweep_file(name: str | Path) -> tuple[Path, str | None]:
    """Return the file that `name` refers to, and its size or stage if the name ends in one: a path, or the name of a
    file in `sweeps/` of the current folder or of those that come with Ablate, such as `mixln-table1` or, of its size
    71m, `mixln-table1-71m`. Raises ConfigError for a name that neither has."""
    path = Path(name)
    check_suffix(path)
    if path.suffix in SUFFIXES or path.name != str(name) or os.path.exists(path):
        return path, None
    known = list_sweep_files() | list_own_files()
    if path.name in known:
        return known[path.name], None
    for stem, file in known.items():
        if path.name.startswith(f"{stem}-"):
            part = path.name.removeprefix(f"{stem}-")
            if part in list_parts(read_yaml(file)):
                return file, part
    text = f"there is no such file, nor a sweep of this name. Accepted: FILE.yaml, {', '.join(known)}."
    raise ConfigError([Problem("", text + did_you_mean(path.name, known), str(name))], "the command line")
