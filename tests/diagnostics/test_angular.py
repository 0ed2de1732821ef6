"""The angular distance, by hand, and where the published code gives NaN."""

import math

import pytest
import torch

from ablate.diagnostics import angular_distance


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_known_angles(dtype):
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, 0.0], [3.0, 3.0]], dtype=dtype)
    y = torch.tensor([[5.0, 0.0], [0.0, 7.0], [-4.0, 0.0], [0.0, 1.0]], dtype=dtype)
    found = angular_distance(x, y)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert found.tolist() == pytest.approx([0.0, 0.5, 1.0, 0.25], abs=1e-3)


def test_a_vector_is_at_no_distance_from_itself():
    """Without the clamp some of these are NaN: their rounded cosine is above 1."""
    x = torch.randn(5000, 64, generator=torch.Generator().manual_seed(0))
    cosine = (x * x).sum(-1) / x.norm(dim=-1) ** 2
    assert torch.arccos(cosine).isnan().any()
    found = angular_distance(x, x)
    assert found.isfinite().all()
    assert found.max() < 1e-3
    assert angular_distance(x, -x).min() > 1 - 1e-3


def test_it_is_the_angle():
    x, y = torch.randn(2, 100, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for a, b, d in zip(x.tolist(), y.tolist(), angular_distance(x, y).tolist(), strict=True):
        dot = math.fsum(p * q for p, q in zip(a, b, strict=True))
        assert d == pytest.approx(math.acos(dot / math.hypot(*a) / math.hypot(*b)) / math.pi, abs=1e-12)
