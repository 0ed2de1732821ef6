"""Heat maps of matrices."""

import warnings

import numpy as np
import pytest

from ablate.plots.matrices import draw_matrices

BLANK, FULL = np.full((2, 2), np.nan), np.array([[0.5, 0.25], [0.0, np.nan]])


@pytest.mark.parametrize(("matrices", "top"), [([BLANK, FULL], 0.5), ([FULL, BLANK], 0.5), ([BLANK, BLANK], 1.0)])
def test_a_matrix_of_nan_is_blank_and_leaves_the_scale_to_the_others(matrices, top):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw_matrices("title", {"model": [("layer", matrix) for matrix in matrices]}, "|J|")
    for panel, matrix in zip(figure.axes, matrices, strict=False):
        (image,) = panel.images
        assert (np.ma.getmaskarray(image.get_array()) == np.isnan(matrix)).all()
        assert image.get_clim() == (0.0, top)
