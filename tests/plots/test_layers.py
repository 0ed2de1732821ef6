"""Panels over the layers of models."""

import warnings

import numpy as np
import pytest

from ablate.diagnostics.measures import Result
from ablate.plots.drawing import draw
from ablate.plots.figure import Figure
from ablate.plots.layers import arrange_matrices, draw_by_layer_and_depth

BLANK, FULL = np.full((2, 2), np.nan), np.array([[0.5, 0.25], [0.0, np.nan]])


def table(*values):
    return Result([{"layer": layer, "norm": value} for layer, value in enumerate(values, 1)])


def test_models_of_several_depths_are_also_drawn_over_their_depth():
    tables = {"shallow": table(5.0, 2.0), "deep": table(9.0, 4.0, 2.0)}
    by_layer, by_depth = draw_by_layer_and_depth("norm", "title", tables, "norm", "x").panels
    assert [line.ys for line in by_layer.marks] == [[5.0, 2.0], [9.0, 4.0, 2.0]]
    assert [(*line.xs, *line.ys) for line in by_depth.marks] == [(2, 5.0), (3, 9.0)]


@pytest.mark.parametrize("tables", [{"one": table(5.0, 2.0)}, {"one": table(5.0, 2.0), "other": table(3.0, 1.0)}])
def test_models_of_one_depth_are_not(tables):
    assert len(draw_by_layer_and_depth("norm", "title", tables, "norm", "x").panels) == 1


@pytest.mark.parametrize(("matrices", "top"), [([BLANK, FULL], 0.5), ([FULL, BLANK], 0.5), ([BLANK, BLANK], 1.0)])
def test_a_matrix_of_nan_is_blank_and_leaves_the_scale_to_the_others(matrices, top):
    part = arrange_matrices({"model": [("layer", matrix) for matrix in matrices]}, "|J|")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn, _ = draw(Figure("jacobian", "title", [part]))
    for panel, matrix in zip(drawn.axes, matrices, strict=False):
        (image,) = panel.images
        assert (np.ma.getmaskarray(image.get_array()) == np.isnan(matrix)).all()
        assert image.get_clim() == (0.0, top)
