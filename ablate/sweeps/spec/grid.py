"""`confirm: {at: grid}`: each arm at each point of its grid is a cell, which the rest of a sweep treats as an arm. An
arm that searches nothing has one point, and its cell its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ablate.config.formatting import format_settings, shorten_paths
from ablate.sweeps.search.space import Choice, Entry, list_cells
from ablate.sweeps.spec.parts import Arm


@dataclass(frozen=True)
class Cell:
    """One arm at one point of its grid."""

    arm: str
    """Name of the arm in the file."""
    point: dict[str, Choice]
    """Dotted path -> value, of all that the arm searches."""
    shared: tuple[tuple[str, Choice], ...]
    """The values of the parameters that all arms search, at which cells are compared."""
    baseline: str
    """The cell of the baseline at the same values of the parameters that all arms search; "" if there is none."""


def list_grid(arms: Mapping[str, Arm], search: Mapping[str, Entry], baseline: str) -> dict[str, Cell]:
    """Return name -> cell, point by point, and at each point in the order of the arms. Raises ValueError for an entry
    that has no values.

    Args:
        arms: of the file.
        search: the search space of all arms.
        baseline: the arm that the others are compared with.
    """
    points = [(arm, point) for arm in arms for point in list_cells({**search, **arms[arm].search})]
    names = _name_cells(points)
    shared = [tuple((path, point[path]) for path in search) for _, point in points]
    bases: dict[tuple[tuple[str, Choice], ...], str] = {}
    for (arm, _), at, name in zip(points, shared, names, strict=True):
        if arm == baseline:
            bases.setdefault(at, name)
    order = {at: i for i, at in enumerate(dict.fromkeys(shared))}
    ranks = sorted(range(len(points)), key=lambda i: order[shared[i]])  # stable: the arms stay in their order
    return {names[i]: Cell(*points[i], shared[i], bases.get(shared[i], "")) for i in ranks}


def _name_cells(points: list[tuple[str, dict[str, Choice]]]) -> list[str]:
    """Return a name for each arm and point, such as 'pre lr=0.003'; in full where three digits name two the same. None
    has the signs that the names of studies are divided by."""
    short = shorten_paths(path for _, point in points for path in point)
    names = [f"{arm} {format_settings(point, short)}".rstrip() for arm, point in points]
    if len({*names}) < len(names):
        full = [" ".join(f"{short[path]}={value}" for path, value in point.items()) for _, point in points]
        names = [f"{arm} {text}" for (arm, _), text in zip(points, full, strict=True)]
    names = ["".join("_" if sign in "/@" or not sign.isprintable() else sign for sign in name) for name in names]
    return names if len({*names}) == len(names) else [f"{name} ({i})" for i, name in enumerate(names)]


def count_comparisons(cells: Mapping[str, Cell]) -> int:
    """Return the number of cells that are compared with a baseline."""
    return sum(bool(cell.baseline) and cell.baseline != name for name, cell in cells.items())
