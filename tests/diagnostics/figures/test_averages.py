"""Means over seeds, by hand."""

import math

import pytest

from ablate.diagnostics.figures.averages import average
from ablate.diagnostics.measures import Result

T = 4.302652729911275  # of Student's t with two degrees of freedom: exceeded in either direction with 5 %


def of(*values, **facts):
    return Result([{"layer": layer, "norm": v, "norm_error": 9.0} for layer, v in enumerate(values, 1)], facts)


def test_mean_and_interval_of_three_seeds():
    first, second = average([of(1.0, 5.0), of(2.0, 5.0), of(6.0, 5.0)]).rows
    sd = math.sqrt((4 + 1 + 9) / 2)
    assert first == pytest.approx({"layer": 1, "norm": 3.0, "norm_error": T * sd / math.sqrt(3)})
    assert second == {"layer": 2, "norm": 5.0}  # equal values do not show their variation


def test_a_row_is_identified_by_update_layer_and_distance():
    rows = [{"update": u, "layer": n, "norm": 10.0 * u + n} for u in (0, 4) for n in (1, 2)]
    shuffled = [{**row, "norm": row["norm"] + 2} for row in reversed(rows)]
    assert [row["norm"] for row in average([Result(rows), Result(shuffled)]).rows] == [2.0, 3.0, 42.0, 43.0]


def test_one_seed_has_no_interval_and_a_number_that_is_not_finite_no_mean():
    assert average([of(1.5)]).rows == [{"layer": 1, "norm": 1.5}]
    (row,) = average([of(1.0), of(math.inf)]).rows
    assert math.isnan(row["norm"])
    assert "norm_error" not in row


def test_matrices_are_averaged():
    assert average([of(1.0, matrices=[[[1.0]]]), of(1.0, matrices=[[[4.0]]])]).facts == {"matrices": [[[2.5]]]}
