"""Panels over the layers of models."""

import pytest

from ablate.diagnostics.measures import Result
from ablate.plots.layers import draw_by_layer_and_depth


def table(*values):
    return Result([{"layer": layer, "norm": value} for layer, value in enumerate(values, 1)])


def test_models_of_several_depths_are_also_drawn_over_their_depth():
    figure = draw_by_layer_and_depth("title", {"shallow": table(5.0, 2.0), "deep": table(9.0, 4.0, 2.0)}, "norm", "x")
    by_layer, by_depth = figure.axes
    assert [list(line.get_ydata()) for line in by_layer.lines] == [[5.0, 2.0], [9.0, 4.0, 2.0]]
    points = [(x, y) for line in by_depth.lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]
    assert points == [(2, 5.0), (3, 9.0)]


@pytest.mark.parametrize("tables", [{"one": table(5.0, 2.0)}, {"one": table(5.0, 2.0), "other": table(3.0, 1.0)}])
def test_models_of_one_depth_are_not(tables):
    assert len(draw_by_layer_and_depth("title", tables, "norm", "x").axes) == 1
