"""Matrices of the layers of models as small heat maps on one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ablate.plots import style
from ablate.plots.layers import MAP, Matrix
from ablate.plots.panels import fold_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure, FigureBase

MOST = 6
"""Layers of a model that are drawn, from the first to the last."""
HIGHEST = 1.0
"""The end of the colour scale: what is larger, as in the first layer of Post-LN, has the colour of 1."""
SIZE = 1.9  # inches of a panel


def draw_matrices(title: str, matrices: Mapping[str, Sequence[tuple[str, Matrix]]], label: str) -> Figure:
    """Return a row of heat maps for each model, of at most six of its layers."""
    from matplotlib.figure import Figure

    size = find_size(matrices)
    figure = Figure(figsize=(size[0], size[1] + 0.6), dpi=style.DPI, layout="constrained")
    figure.suptitle(fold_label(title, int(11 * size[0])), fontsize=12, x=0.01, ha="left")
    fill_matrices(figure, matrices, label)
    return figure


def find_size(matrices: Mapping[str, Sequence[tuple[str, Matrix]]]) -> tuple[float, float]:
    """Return the inches that the maps take."""
    across = max(len(pick_spread(maps)) for maps in matrices.values())
    return max(6.0, SIZE * across + 1.4), (SIZE + 0.35) * len(matrices)


def fill_matrices(figure: FigureBase, matrices: Mapping[str, Sequence[tuple[str, Matrix]]], label: str) -> None:
    """Draw the rows of heat maps into a figure or a part of one, coloured from 0 to the largest value of all, and at
    most to `HIGHEST`; NaN is blank."""
    picked = {name: pick_spread(maps) for name, maps in matrices.items()}
    finite = [float(np.nanmax(m)) for maps in picked.values() for _, m in maps if not np.isnan(m).all()]
    top = max(finite, default=0.0) or 1.0
    across = max(map(len, picked.values()))
    grid = figure.subplots(len(picked), across, squeeze=False)
    image: Any = None
    for panels, (name, maps) in zip(grid, picked.items(), strict=True):
        for panel, (heading, matrix) in zip(panels, maps, strict=False):
            image = panel.imshow(matrix, cmap=MAP, vmin=0, vmax=min(top, HIGHEST), interpolation="nearest")
            panel.set_title(heading, fontsize=8.5, loc="left")
            panel.set_xticks([])
            panel.set_yticks([])
        for panel in panels[len(maps) :]:
            panel.set_visible(False)
        panels[0].set_ylabel(fold_label(name, 20))
    figure.colorbar(image, ax=grid, label=label, shrink=0.9, pad=0.015, extend="max" if top > HIGHEST else "neither")


def pick_spread(items: Sequence[Any], most: int = MOST) -> list[Any]:
    """Return at most `most` of `items`, evenly spread, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
