"""The figure of failures in a factorial: how many seeds failed in each cell, with the exact interval of the share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ablate.config.formatting import shorten_paths
from ablate.plots import style
from ablate.sweeps.records import SweepRecord
from ablate.verdict.records import Compared

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTION = (
    "Seeds that failed (diverged or got stuck), of those that ended, in each cell; below it the exact 95 % interval of "
    "the share that fails, one-sided where none or all failed."
)
_HEIGHT, _FRAME = 0.5, 2.0  # inches: of a row, and of all else
_DARK = 0.55  # share from which a number is white


def has_failures(record: SweepRecord, compared: Mapping[str, Compared]) -> bool:
    """Return whether `record` is a factorial of which a seed failed."""
    return bool(record.spec.contrasts) and any(c.failures and c.failures.failed for c in compared.values())


def draw_failures(record: SweepRecord, compared: Mapping[str, Compared]) -> Figure:
    """Return a table of squares: a row for each level of one component, which is `within` or the first, and a column
    for each combination of the others."""
    spec = record.spec
    cells, components = (spec.designed.cells, [*(spec.components or {})]) if spec.designed else ({}, [])
    of_rows = spec.within or components[0]
    short = shorten_paths(components)
    rows = list(dict.fromkeys(cell[of_rows] for cell in cells.values()))
    places = {
        arm: (cell[of_rows], "\n".join(f"{short[name]}={level}" for name, level in cell.items() if name != of_rows))
        for arm, cell in cells.items()
    }
    columns = list(dict.fromkeys(column for _, column in places.values()))
    figure, axes = style.create_canvas(
        f"{record.title}: seeds that failed", "of those that ended; darker: more of them"
    )
    figure.set_size_inches(style.SIZE[0], _FRAME + _HEIGHT * len(rows))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    shares = [[float("nan")] * len(columns) for _ in rows]
    for arm, (row, column) in places.items():
        if arm not in compared or (share := compared[arm].failures) is None:
            continue
        x, y, failed = columns.index(column), rows.index(row), share.failed / share.n
        shares[y][x] = failed
        text = f"{share.failed}/{share.n}\n{100 * share.low:.0f} to {100 * share.high:.0f} %"
        axes.text(x, y, text, ha="center", va="center", fontsize=8, color="white" if failed > _DARK else "black")
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), [style.escape_math(column) for column in columns], fontsize=7.5)
    axes.set_yticks(range(len(rows)), [style.escape_math(f"{short[of_rows]}={row}") for row in rows], fontsize=8.5)
    axes.tick_params(length=0)
    return figure
