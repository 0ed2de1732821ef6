"""The figure of one training run: its layers during training, and at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ablate.diagnostics.measures.angular import distance_matrix
from ablate.diagnostics.measures.base import Result, measurements
from ablate.plots.layers import Course, choose_scale, draw_course, draw_heat_map
from ablate.plots.panels import create_panels, fold_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_overview(results: Mapping[str, Result], history: Mapping[str, Course], unit: str) -> Figure:
    """Return a heat map of each number of the layers during training, and one of the angular distances at the end."""
    labels = {column: label for kind in measurements.values() for column, label in kind.columns.items()}
    maps = {name: result for name, result in results.items() if any("distance" in row for row in result.rows)}
    figure, axes = create_panels("The layers in training", [*history, *maps], across=3)
    for panel, (column, course) in zip(axes, history.items(), strict=False):
        mesh = draw_course(panel, course, choose_scale(list(course.values())), unit)
        figure.colorbar(mesh, ax=panel, shrink=0.9, pad=0.02)
        panel.set_title(fold_label(labels.get(column, column), 44), fontsize=8.5, loc="left")
    for panel, result in zip(axes[len(history) :], maps.values(), strict=True):
        matrix = distance_matrix(result)
        figure.colorbar(draw_heat_map(panel, matrix, float(np.nanmax(matrix)) or 1.0), ax=panel, shrink=0.9, pad=0.02)
        panel.set_title("angular distance at the end (share of pi)", fontsize=8.5, loc="left")
    return figure
