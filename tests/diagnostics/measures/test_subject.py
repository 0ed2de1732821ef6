"""Batches of Ablate's datasets, as measurements see them."""

import torch
from torch.utils.data import TensorDataset

from ablate.data import IGNORED
from ablate.diagnostics.measures.subject import build_loader


class Rows(TensorDataset):
    """Targets of a few rows; the inputs are the numbers of their places."""

    def __init__(self, *targets):
        rows = torch.tensor(targets)
        super().__init__(torch.arange(rows.numel()).view_as(rows), rows)

    def __getitems__(self, indices):
        return self[list(indices)]


def test_a_prompt_is_there_and_padding_is_not():
    no = IGNORED
    load = build_loader([Rows([no, no, 3, 4, no, no], [1, no, 2, no, 3, 4])], "tokens")
    yes = [True] * 6
    assert load(0, 2).there.tolist() == [[True, True, True, True, False, False], yes]
    assert load(1, 2).there is None  # nothing is padded


def test_items_go_on_from_one_dataset_to_the_next():
    load = build_loader([Rows([0], [1], [2]), Rows([3], [4])], "images")
    batch = load(1, 4)
    assert batch.targets.tolist() == [[1], [2], [3]]
    assert batch.there is None
