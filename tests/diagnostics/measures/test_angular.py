"""The angular distance, by hand, and where the published code gives NaN."""

import math

import pytest
import torch
from diagnostics.models import Linear, Network, subject_of

from ablate.diagnostics.measures import Angular, Options, angular_distance
from ablate.diagnostics.measuring import measure


def measured(model, inputs, kind):
    return measure(subject_of(model, inputs), [kind])[kind.name]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_known_angles(dtype):
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, 0.0], [3.0, 3.0]], dtype=dtype)
    y = torch.tensor([[5.0, 0.0], [0.0, 7.0], [-4.0, 0.0], [0.0, 1.0]], dtype=dtype)
    found = angular_distance(x, y)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert found.tolist() == pytest.approx([0.0, 0.5, 1.0, 0.25], abs=1e-3)


def test_a_vector_is_at_no_distance_from_itself():
    """By arccos some of these are NaN: their rounded cosine is above 1."""
    x = torch.randn(5000, 64, generator=torch.Generator().manual_seed(0))
    cosine = (x * x).sum(-1) / x.norm(dim=-1) ** 2
    assert torch.arccos(cosine).isnan().any()
    found = angular_distance(x, x)
    assert (found == 0).all()
    assert (angular_distance(x, -x) == 1).all()


def test_it_is_the_angle():
    x, y = torch.randn(2, 100, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for a, b, d in zip(x.tolist(), y.tolist(), angular_distance(x, y).tolist(), strict=True):
        dot = math.fsum(p * q for p, q in zip(a, b, strict=True))
        assert d == pytest.approx(math.acos(dot / math.hypot(*a) / math.hypot(*b)) / math.pi, abs=1e-12)


def test_pairs_of_layers_by_hand():
    """Two layers that turn by a right angle each: 0.5 apart, and 1 from first to last."""
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    found = measured(Network([Linear(turn), Linear(turn)], 3), torch.randn(4, 5, 2), Angular)
    values = {(row["layer"], row["distance"]): row["angular_distance"] for row in found.rows}
    assert values == pytest.approx({(1, 1): 0.5, (2, 1): 0.5, (1, 2): 1.0})
    assert found.facts["vectors"] == 20


def test_padding_is_left_out_and_the_last_token_is_the_last_that_is_there():
    torch.manual_seed(0)
    model, x = Network([Linear(torch.randn(4, 4))], 3), torch.randn(3, 6, 4)
    there = torch.arange(6) < torch.tensor([[6], [2], [1]])
    subject = subject_of(model, x, there=there)
    distances = angular_distance(x, model.layers[0](x))
    every = measure(subject, [Angular], batch_tokens=6)["angular"]
    assert every.rows[0]["angular_distance"] == pytest.approx(distances[there].mean().item(), abs=1e-6)
    last = measure(subject, [Angular], Options(positions="last"), batch_tokens=12)["angular"]
    expected = torch.stack([distances[0, 5], distances[1, 1], distances[2, 0]]).mean()
    assert last.rows[0]["angular_distance"] == pytest.approx(expected.item(), abs=1e-6)
