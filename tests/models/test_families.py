"""What every model family promises beside what `ablate check` looks at: tests/diagnostics/checks runs that."""

import pytest
import torch
from norms.cases import EACH_ONCE, INITS, RESIDUAL, settings_of
from torch.utils.checkpoint import checkpoint

from ablate.config.errors import Problem
from ablate.experiment.tree import Experiment
from ablate.models import list_families, models

every_family = pytest.mark.parametrize("family", list_families())


def gradients(model, logits):
    model.zero_grad()
    weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=logits.dtype)
    (logits * weight).sum().backward()
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize(("family", "kind", "layer"), EACH_ONCE)
def test_a_layer_that_is_computed_again_gives_the_same_gradients(tiny, family, kind, layer):
    shallow = {"model.layers": 2} if "layers" in models[family].model_fields else {}
    _, model, inputs = tiny(family, settings_of(kind, layer, **shallow))
    plain = model(inputs)
    expected = gradients(model, plain)
    for block in model.blocks():
        forward = block.forward
        block.forward = lambda *args, f=forward: checkpoint(f, *args, use_reentrant=False)
    again = model(inputs)
    torch.testing.assert_close(again, plain, atol=1e-12, rtol=1e-12)
    for a, b in zip(gradients(model, again), expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@every_family
def test_parameters_can_be_frozen(tiny, family):
    _, model, _ = tiny(family)
    whole = model.parameter_count()
    first = next(model.parameters()).requires_grad_(False)
    assert model.parameter_count() == whole - first.numel()


@pytest.mark.parametrize("family", RESIDUAL)
def test_projections_are_the_matrices_of_every_layer(tiny, family):
    """The very memory of the weights, so that an initialisation acts on the model."""
    experiment, model, _ = tiny(family)
    found = list(model.projections())
    assert {p.layer for p in found} >= set(range(experiment.model.layers))
    for layer in range(experiment.model.layers):
        roles = [p.role for p in found if p.layer == layer]
        assert len(roles) == len(set(roles))
        assert {*roles, "gate"} == {"q", "k", "v", "o", "gate", "up", "down"}
    owned = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert all(p.weight.untyped_storage().data_ptr() in owned for p in found)
    inside = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and ("attn" in name or "mlp" in name))
    assert sum(p.weight.numel() for p in found if p.layer is not None) == inside


@pytest.mark.parametrize(("family", "init"), INITS)
def test_initial_logits_are_near_guessing_evenly(family, init):
    experiment = Experiment.from_mapping({"model": {"kind": family, "layers": 2}, "init": init})
    torch.manual_seed(0)
    language = experiment.model.task == "language_modeling"
    model = experiment.model.build(experiment.norm, experiment.init, 10, (16,) if language else (1, 8, 8))
    logits = model(torch.randint(10, (4, 16)) if language else torch.randn(4, 1, 8, 8))
    assert logits.dtype == torch.float32
    assert logits.abs().max() < (2 if init != "fan_in" else 6)  # of variance 1, as all summed inputs


@pytest.mark.parametrize("family", RESIDUAL)
def test_heads_must_divide_the_width(family):
    config = models[family](hidden=16, layers=1, heads=3)
    assert config.validate() == [Problem("heads", "must divide hidden (16)", 3)]
    assert models[family](hidden=16, layers=1, heads=4).validate() == []
