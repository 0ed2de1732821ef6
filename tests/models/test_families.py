"""What every model family promises with every placement and every norm layer."""

import copy

import pytest
import torch

from ablate.config import Experiment
from ablate.models import models
from ablate.norms import initializations, norm_layers, placements

LANGUAGE = [family for family in models if models[family].task == "language_modeling"]
every_norm = pytest.mark.parametrize("layer", norm_layers)
every_placement = pytest.mark.parametrize("kind", placements)
every_family = pytest.mark.parametrize("family", models)


def norm(kind, layer):
    settings = {"norm": kind, "norm.layer": layer, "init.std": 0.3}
    return {**settings, "norm.alpha": 0.5} if kind == "mix" else settings


@every_norm
@every_placement
@pytest.mark.parametrize("family", LANGUAGE)
@pytest.mark.parametrize("t", [1, 7, 11])
def test_no_token_sees_the_future(tiny, family, kind, layer, t):
    _, model, tokens = tiny(family, norm(kind, layer))
    changed = tokens.clone()
    changed[:, t] = (tokens[:, t] + 1) % 11
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :t], after[:, :t])
    assert ((before[:, t:] - after[:, t:]).abs().amax(-1) > 1e-6).all()
    torch.testing.assert_close(model(tokens[:, :t]), before[:, :t], atol=1e-10, rtol=1e-10)


@every_norm
@every_placement
@every_family
def test_no_item_sees_another_of_its_batch(tiny, family, kind, layer):
    _, model, inputs = tiny(family, norm(kind, layer))
    together = model(inputs)
    for i in range(len(inputs)):
        torch.testing.assert_close(model(inputs[i : i + 1])[0], together[i], atol=1e-10, rtol=1e-10)


@every_norm
@every_placement
@every_family
def test_every_parameter_learns(tiny, family, kind, layer):
    _, model, inputs = tiny(family, norm(kind, layer))
    logits = model(inputs)
    assert logits.shape[-1] == 11
    assert logits.isfinite().all()
    weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=logits.dtype)
    (logits * weight).sum().backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert not still
    assert model.parameter_count() == sum(p.numel() for p in model.parameters())


@every_norm
@every_placement
@every_family
def test_state_dict_round_trip_and_autocast(tiny, family, kind, layer):
    _, model, inputs = tiny(family, norm(kind, layer))
    _, other, _ = tiny(family, norm(kind, layer), seed=1)
    assert not torch.equal(model(inputs), other(inputs))
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    assert torch.equal(model(inputs), other(inputs))
    model, inputs = model.float(), inputs.float() if inputs.is_floating_point() else inputs
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(inputs).float()
    exact = model(inputs)
    assert 0 < (rough - exact).abs().mean() < 0.1 * exact.abs().mean()


@every_family
def test_parameters_can_be_frozen(tiny, family):
    _, model, _ = tiny(family)
    whole = model.parameter_count()
    first = next(model.parameters()).requires_grad_(False)
    assert model.parameter_count() == whole - first.numel()


@every_family
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


@pytest.mark.parametrize("init", initializations)
@every_family
def test_initial_logits_are_near_guessing_evenly(family, init):
    experiment = Experiment.from_mapping({"model": {"kind": family, "layers": 2}, "init": init})
    torch.manual_seed(0)
    language = experiment.model.task == "language_modeling"
    model = experiment.model.build(experiment.norm, experiment.init, 10, (16,) if language else (1, 8, 8))
    logits = model(torch.randint(10, (4, 16)) if language else torch.randn(4, 1, 8, 8))
    assert logits.dtype == torch.float32
    assert logits.abs().max() < 2


@every_family
def test_heads_must_divide_the_width(family):
    config = models[family](hidden=16, layers=1, heads=3)
    assert config.problems() == [(("heads",), "must divide hidden (16)", 3)]
    assert models[family](hidden=16, layers=1, heads=4).problems() == []
