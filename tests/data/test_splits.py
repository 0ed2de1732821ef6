"""The split into training and validation."""

import numpy as np
import pytest

from ablate.config.errors import DataError
from ablate.data import data_kinds, split
from ablate.data.splits import find_splits, split_text
from ablate.tasks import tasks


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
        assert data_kinds[kind].task in tasks


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("training_set", "test_set"), {"train": "training_set", "test": "test_set"}),
        (("train_images", "val_images"), {"train": "train_images", "validation": "val_images"}),
        (("annotations", "train2017", "val2017"), {"train": "train2017", "validation": "val2017"}),
        (("seg_train", "seg_test", "seg_pred"), {"train": "seg_train", "test": "seg_test"}),
        (("train", "validate"), {"train": "train", "validation": "validate"}),
        (("TrainSet", "Dev-Data", "01_test"), {"train": "TrainSet", "validation": "Dev-Data", "test": "01_test"}),
        (("train", "train_2", "val.1"), {"train": "train", "validation": "val.1"}),
        (("trainers", "testudo", "valley", "trains", "data", "images", "dev_board", "val d'isere", "trainer set"), {}),
    ],
)
def test_folders_of_splits_are_known_by_their_usual_names(names, found):
    assert find_splits(names, "root") == found


def test_two_splits_for_one_use_are_refused():
    with pytest.raises(DataError, match="root has two splits for train, train1 and train2: keep or name one of them"):
        find_splits(("train1", "train2", "val"), "root")


def inside(place, parts):
    return any(first <= place < last for first, last in parts)


@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize("fraction", [1e-5, 0.01, 0.05, 0.5, 0.9])
@pytest.mark.parametrize(
    "sizes",
    [[100_000], [40_000, 60_000], [100] * 1000, [30_000, 1, 2, 60_000, 3, 9_994]],
    ids=["one", "two", "short", "mixed"],
)
def test_held_out_text_is_contiguous_and_apart(sizes, fraction, seed):
    """Checked place by place against what the docstring says."""
    window, ends = 33, np.cumsum(sizes).tolist()
    train, val = split_text(ends, fraction, seed, window)
    sides = np.zeros(ends[-1], int)
    for mark, parts in ((1, train), (2, val)):
        assert parts == sorted(parts)
        for first, last in parts:
            assert 0 <= first < last <= ends[-1]
            assert not sides[first:last].any()
            sides[first:last] = mark
    target = max(window, round(fraction * ends[-1]))
    assert 0.5 * target <= np.sum(sides == 2) <= 1.5 * target
    assert np.sum(sides == 0) <= 2 * window * len(val)
    assert len(val) <= 16
    assert all(last - first >= window // 2 for first, last in val)
    for first, last in val:  # a border within a document has a window on no side
        assert first in [0, *ends] or not inside(first - 1, train)
        assert last in ends or not inside(last, train)
        for place in range(max(0, first - window), first):
            assert first in [0, *ends] or sides[place] != 1
        for place in range(last, min(ends[-1], last + window)):
            assert last in ends or sides[place] != 1


def test_short_documents_are_whole_on_one_side():
    ends = np.cumsum([50, 70, 20, 60] * 300).tolist()
    train, val = split_text(ends, 0.1, 0, 33)
    assert {border for part in [*train, *val] for border in part} <= {0, *ends}
    assert sum(last - first for first, last in train + val) == ends[-1]


def test_blocks_are_fixed_by_their_seed_and_spread():
    first, again, other = (split_text([1_000_000], 0.1, seed, 33)[1] for seed in (3, 3, 4))
    assert first == again != other
    assert len(first) == 16
    assert [start // (1_000_000 // 16) for start, _ in first] == list(range(16))
