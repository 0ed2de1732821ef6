"""The split into training and validation."""

import numpy as np
import pytest

from ablate.config.errors import DataError
from ablate.data import data_kinds, split


@pytest.mark.parametrize(("n", "fraction", "held_out"), [(100, 0.05, 5), (2, 0.05, 1), (2, 0.99, 1), (10, 0.99, 9)])
def test_every_item_is_on_one_side(n, fraction, held_out):
    train, val = split(n, fraction, 0)
    assert len(val) == held_out
    assert sorted([*train, *val]) == list(range(n))
    assert np.all(np.diff(train) > 0)
    assert np.all(np.diff(val) > 0)


def test_fixed_by_its_seed_alone():
    first = split(1000, 0.1, 3)
    np.random.seed(5)
    assert np.array_equal(first[1], split(1000, 0.1, 3)[1])
    assert not np.array_equal(first[1], split(1000, 0.1, 4)[1])


def test_a_larger_fraction_only_adds():
    assert set(split(100, 0.1, 0)[1]) < set(split(100, 0.3, 0)[1])


@pytest.mark.parametrize("n", [0, 1])
def test_too_few(n):
    with pytest.raises(DataError, match=f"{n} images. At least 2 are needed"):
        split(n, 0.5, 0, "images")


def test_all_kinds_are_registered():
    assert set(data_kinds) >= {"topics", "text", "digits", "image_folder"}
    for kind in data_kinds:
        assert data_kinds[kind].task in ("language_modeling", "image_classification")
