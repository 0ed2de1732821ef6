"""The figure of a coordinate check: models side by side, sizes across, one line for each part of a model."""

from __future__ import annotations

from collections.abc import Mapping

from ablate.diagnostics.coordinates import NAME
from ablate.diagnostics.coordinates.check import LOGITS, Coordinates, align, find_group
from ablate.diagnostics.coordinates.recipes import AXES
from ablate.plots.figure import Axis, Entry, Figure, Panel, Part
from ablate.plots.marks import Line
from ablate.plots.style import pick_shade

TITLE = "Coordinate check: flat where the settings hold at every size"
_ROWS = tuple((axis, quantity) for axis in AXES for quantity in (0, 1))


def draw(checks: Mapping[str, Coordinates]) -> Figure:
    """Return the figure of models by label: rows for activations at initialisation and for their change after the last
    update, over the width and then over the depth, each on one scale for all models."""
    panels = []
    updates = next(iter(checks.values())).facts["updates"]
    for axis, quantity in _ROWS:
        what = f"change after {updates} updates" if quantity else "activations at initialisation"
        for place, (label, check) in enumerate(checks.items()):
            title = label if (axis, quantity) == _ROWS[0] else ""
            name = f"RMS of {what}" if place == 0 else ""
            panels.append(_build_panel(check, axis, quantity, title, name, place == len(checks) - 1))
    return Figure(NAME, TITLE, [Part(panels, len(checks), share="y")])


def _build_panel(check: Coordinates, axis: str, quantity: int, title: str, label: str, is_last: bool) -> Panel:
    """Return a line for each part; parts inside of layers are in the table alone."""
    sizes = [*check.courses[axis]]
    lines = {
        part: [course[-1 if quantity else 0][quantity] for course in courses]
        for part, courses in align(axis, check.courses[axis]).items()
        if find_group(part) != "sublayers"
    }
    shades = {part: pick_shade(0.9 * place / max(1, len(lines) - 1)) for place, part in enumerate(lines)}
    dashes = {part: "--" if part == LOGITS else "-" for part in lines}
    marks = [Line(sizes, lines[part], shades[part], 1.3, dashes[part], marker="o", size=3.5) for part in lines]
    entries = [Entry(part, shades[part], "o", dashes[part]) for part in lines] if is_last else []
    across = Axis(axis, log=True, ticks={size: str(size) for size in sizes}, grid=False)
    log = any(value > 0 for values in lines.values() for value in values)
    return Panel(marks, across, Axis(label, log=log), title, entries=entries)
