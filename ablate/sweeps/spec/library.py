"""The sweep files that come with Ablate, by their names: `demo` is demo.yaml of `sweeps/`."""

from __future__ import annotations

from pathlib import Path

from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.config.yaml import SUFFIXES

_PACKAGE = Path(__file__).parents[2]
FOLDER = next((folder for folder in (_PACKAGE / "sweep_files", _PACKAGE.parent / "sweeps") if folder.is_dir()), None)
"""The files of an installed wheel, or of a clone."""


def list_sweep_files() -> dict[str, Path]:
    """Return name -> file of the sweeps that come with Ablate; none in an installation without them."""
    return {file.stem: file for file in sorted(FOLDER.glob("*.yaml"))} if FOLDER else {}


def find_sweep_file(name: str | Path) -> Path:
    """Return the file that `name` refers to: a path, or the name of a file in `sweeps/` of the current folder or of
    those that come with Ablate. Raises ConfigError for a name that neither has."""
    path = Path(name)
    if path.suffix in SUFFIXES or path.name != str(name) or path.exists():
        return path
    own = Path("sweeps", f"{name}.yaml")
    if own.exists():
        return own
    known = list_sweep_files()
    if path.name in known:
        return known[path.name]
    text = f"there is no such file, nor a sweep of this name. Accepted: FILE.yaml, {', '.join(known)}."
    raise ConfigError([Problem("", text + did_you_mean(path.name, known), str(name))], "the command line")
