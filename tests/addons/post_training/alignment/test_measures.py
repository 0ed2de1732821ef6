"""What alignment has done to a model, by hand on models that are tables."""

import math

import pytest
import torch

from ablate.addons.post_training.alignment import measures


class Table(torch.nn.Module):
    """A bigram model of three tokens, the last of which ends."""

    device = "cpu"

    def __init__(self, rows):
        super().__init__()
        self.rows = torch.tensor(rows, dtype=torch.float64).log()

    def forward(self, input_ids, **ignored):
        return type("Out", (), {"logits": self.rows[input_ids]})


def test_log_probabilities_are_those_of_the_next_token():
    model = Table([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [1 / 3, 1 / 3, 1 / 3]])
    ids = torch.tensor([[0, 1, 2]])
    found = measures.compute_log_probabilities(model, ids, torch.ones_like(ids))
    assert found[0, 0].tolist() == pytest.approx([math.log(p) for p in (0.5, 0.25, 0.25)])
    assert found[0, 1].tolist() == pytest.approx([math.log(p) for p in (0.1, 0.2, 0.7)])


def test_the_divergence_is_summed_up_to_the_end(monkeypatch):
    """By hand: from token 0 the policy gives token 1, then the end; what is behind it does not count."""
    policy = Table([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [1 / 3, 1 / 3, 1 / 3]])
    start = Table([[1 / 3, 1 / 3, 1 / 3], [0.25, 0.5, 0.25], [0.1, 0.1, 0.8]])
    inside = torch.tensor([[False, True, True, False]])
    monkeypatch.setattr(measures, "sample_answers", lambda *given: (torch.tensor([[0, 1, 2, 2]]), inside))
    monkeypatch.setattr(measures, "_pad", lambda *given: {"attention_mask": torch.ones(1, 1, dtype=torch.int64)})
    wanted = sum(p * math.log(p / q) for p, q in zip((0.5, 0.25, 0.25), (1 / 3,) * 3, strict=True))
    wanted += sum(p * math.log(p / q) for p, q in zip((0.1, 0.2, 0.7), (0.25, 0.5, 0.25), strict=True))
    assert measures.measure_divergence(policy, start, None, ["a"], 3, 0) == pytest.approx(wanted)


def test_a_tie_is_half_a_win():
    assert measures.compute_win_rate([1.0, 2.0, 3.0, 0.0], [0.0, 2.0, 4.0, -1.0]) == (1 + 0.5 + 0 + 1) / 4
