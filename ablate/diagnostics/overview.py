"""The figure of one training run: its layers during training, and at the end."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ablate.diagnostics.measures.angular import distance_matrix
from ablate.diagnostics.measures.base import Result, measurements
from ablate.plots.figure import Bar, Figure, Part
from ablate.plots.layers import Course, map_course, map_distances, scale_courses

NAME = "training"


def draw_overview(results: Mapping[str, Result], history: Mapping[str, Course], unit: str) -> Figure:
    """Return a heat map of each number of the layers during training, and one of the angular distances at the end."""
    labels = {column: label for kind in measurements.values() for column, label in kind.columns.items()}
    panels = [
        map_course(course, scale_courses("", [course]), unit, labels.get(column, column), own_bar=True)
        for column, course in history.items()
    ]
    for result in results.values():
        if any("distance" in row for row in result.rows):
            matrix = distance_matrix(result)
            top = float(np.nanmax(matrix)) or 1.0
            title = "angular distance at the end (share of pi)"
            panels.append(map_distances(matrix, top, title, Bar("", (0, top))))
    return Figure(NAME, "The layers in training", [Part(panels, across=3)])
