"""The corpora of the papers by name."""

import pytest

from ablate.cli.list import list_choices
from ablate.data import PRESETS
from ablate.experiment.tree import Experiment


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_whole_and_give_way(name):
    data = Experiment.from_mapping({"data": name}).data
    assert data.val_tokens >= 10_000_000
    assert data.dataset.count("/") == 1
    changed = Experiment.from_mapping({"data": name, "data.train_tokens": 5, "data.seq_len": 9}).data
    assert (changed.train_tokens, changed.seq_len, changed.dataset) == (5, 9, data.dataset)
    assert Experiment.from_mapping(Experiment.from_mapping({"data": name}).to_tree()).data == data


def test_c4_is_that_of_the_papers():
    data = Experiment.from_mapping({"model": "llama-71m", "data": "c4"}).data
    assert (data.dataset, data.subset, data.val_split) == ("allenai/c4", "en", "validation")
    assert (data.tokenizer, data.layout, data.seq_len) == ("t5-base", "documents", 256)


def test_they_are_listed():
    rows = {row["data"]: row for row in list_choices("data")}
    assert set(PRESETS) <= set(rows)
    assert "dataset=allenai/c4" in rows["c4"]["what it is"]
    assert rows["c4"]["task"] == "language modeling"
