"""What every model family promises with every placement and every norm layer. `ablate check` takes each of them once:
here are more pairs, all of them in `make chaos`, and what it does not look at."""

import copy

import pytest
import torch
from norms.cases import (
    COMBINATIONS,
    DAILY,
    EACH_ONCE,
    INITS,
    RESIDUAL,
    check_recomputed,
    mark_rest,
    settings_of,
    shaken,
)

from ablate.config.errors import Problem
from ablate.experiment.tree import Experiment
from ablate.models import list_families, models

LANGUAGE = [case for case in COMBINATIONS if models[case[0]].task == "language_modeling"]
every_combination = pytest.mark.parametrize(("family", "kind", "layer"), mark_rest(COMBINATIONS, DAILY))
every_family = pytest.mark.parametrize("family", list_families())


@pytest.mark.parametrize(("family", "kind", "layer"), mark_rest(LANGUAGE, DAILY))
def test_no_token_sees_the_future(tiny, family, kind, layer):
    _, model, tokens = tiny(family, settings_of(kind, layer))
    before = model(tokens)
    for t in (1, 7, 11):
        changed = tokens.clone()
        changed[:, t] = (tokens[:, t] + 1) % 11
        after = model(changed)
        assert torch.equal(before[:, :t], after[:, :t]), t
        assert ((before[:, t:] - after[:, t:]).abs().amax(-1) > 1e-6).all(), t
        torch.testing.assert_close(model(tokens[:, :t]), before[:, :t], atol=1e-10, rtol=1e-10)


@every_combination
def test_no_item_sees_another_of_its_batch(tiny, family, kind, layer):
    _, model, inputs = tiny(family, settings_of(kind, layer))
    model.eval()  # BatchNorm looks at the batch while it trains
    together = model(inputs)
    for i in range(len(inputs)):
        torch.testing.assert_close(model(inputs[i : i + 1])[0], together[i], atol=1e-10, rtol=1e-10)


@every_combination
def test_every_parameter_learns(tiny, family, kind, layer):
    _, model, inputs = tiny(family, settings_of(kind, layer))
    logits = shaken(model, 0.05 if family in RESIDUAL else 0.0)(inputs)  # some begin where their gradient is 0
    assert logits.shape[-1] == 11
    assert logits.isfinite().all()
    weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=logits.dtype)
    (logits * weight).sum().backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert not still
    assert model.parameter_count() == sum(p.numel() for p in model.parameters())


@every_combination
def test_state_dict_round_trip_and_autocast(tiny, family, kind, layer):
    _, model, inputs = tiny(family, settings_of(kind, layer))
    _, other, _ = tiny(family, settings_of(kind, layer), seed=1)
    assert not torch.equal(model(inputs), other(inputs))
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    assert torch.equal(model.eval()(inputs), other.eval()(inputs))
    model, inputs = model.float(), inputs.float() if inputs.is_floating_point() else inputs
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(inputs).float()
    exact = model(inputs)
    assert 0 < (rough - exact).abs().mean() < 0.1 * exact.abs().mean()


@every_family
def test_compiled_it_is_the_same(tiny, family):
    """torch.compile takes the whole model as one graph; `ablate check` compiles the layers of every placement."""
    _, model, inputs = tiny(family)
    plain = model(inputs)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)(inputs)
    torch.testing.assert_close(compiled, plain, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("family", "kind", "layer"), EACH_ONCE)
def test_a_layer_that_is_computed_again_gives_the_same_gradients(tiny, family, kind, layer):
    shallow = {"model.layers": 2} if "layers" in models[family].model_fields else {}
    _, model, inputs = tiny(family, settings_of(kind, layer, **shallow))
    check_recomputed(model, inputs)


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
