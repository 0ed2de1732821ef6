"""The scale of searched numbers, in steps, and how far a range may be extended."""

import math

import pytest

from ablate.sweeps.search.axes import Axis
from ablate.sweeps.search.space import Range

LIST = [1e-3, 2e-3, 4e-3, 8e-3]


@pytest.mark.parametrize(
    ("entry", "log", "step", "length"),
    [
        ([1e-3, 1e-2, 1e-1], True, math.log(10), 2),
        ([0.1, 0.2, 0.3], False, 0.1, 2),
        ([8e-3, 4e-3, 2e-3, 1e-3], True, math.log(2), 3),  # in any order
        ([1, 2, 3, 4], False, 1, 3),
        ([1e-3, 8e-3], True, math.log(8), 1),
        ([0.1, 0.2], False, 0.1, 1),
        (Range(low=1e-4, high=1e-1, log=True, num=7), True, math.log(10) / 2, 6),
        (Range(low=1e-4, high=1e-1, log=True), True, math.log(10) * 3 / 4, 4),  # that of five points
        (Range(low=2, high=6), False, 1, 4),  # whole numbers
    ],
)
def test_places_are_counted_in_steps_of_the_search(entry, log, step, length):
    axis = Axis.of(entry, points=5)
    assert (axis.log, axis.step, axis.length) == (log, pytest.approx(step), pytest.approx(length))
    for place in (0, 1, length, -1, length + 1):
        if not axis.whole:
            assert axis.place(axis.value(place)) == pytest.approx(place, abs=1e-5)
    assert axis.value(0) == axis.low


def test_a_range_is_extended_by_whole_steps_up_to_what_is_accepted():
    axis = Axis.of(LIST, 4)
    free = axis.extend(2, lambda value: True)
    assert (free.before, free.beyond, free.closed) == (2, 2, (False, False))
    assert free.span == pytest.approx((-2, 5))
    assert [free.value(place) for place in (-1, 4, 5)] == pytest.approx([5e-4, 1.6e-2, 3.2e-2])
    near = axis.extend(2, lambda value: 1e-3 <= value <= 2e-2)
    assert (near.before, near.beyond, near.closed) == (0, 1, (True, False))  # 0.02 lies beyond one step, within two
    assert axis.extend(0, lambda value: True).span == pytest.approx((0, 3))


def test_an_end_is_one_where_a_value_beyond_it_is_accepted():
    axis = Axis.of(LIST, 4).extend(2, lambda value: value >= 1e-3)
    assert [axis.find_end(place) for place in (0, 0.05, 1, 2.95, 3)] == ["", "", "", "upper", "upper"]
    assert [axis.find_end(3, beyond=steps) for steps in (0, 1)] == ["upper", ""]
    assert axis.find_end(5, beyond=2) == "upper"  # extended to the last, and still there
    assert [axis.find_end(2.3, tried) for tried in ((0.5, 1, 2.3), (1, 2.3, 2.7), (0.5, 2.3))] == [
        "upper",
        "",
        "",
    ]  # nothing lies between
    assert axis.find_end(1.9, (0.5, 1, 1.9)) == ""  # the end is more than a step away
    bounded = Axis.of([0.25, 0.5, 0.75, 1.0], 4).extend(2, lambda alpha: 0 <= alpha <= 1)
    assert (bounded.before, bounded.find_end(3), bounded.find_end(0), bounded.find_end(-1, before=1)) == (
        1,
        "",
        "lower",
        "",
    )
