"""Factors that are not learned: Python floats, or tensors where layers share a compiled program."""

import copy

import pytest
import torch
from norms.cases import WIRED, settings_of
from torch import nn

from ablate.norms import placements
from ablate.norms.residuals import lift_factors


def wiring_of(model):
    """The residual wiring of each layer."""
    return [[part for name, part in block.named_children() if name.endswith("_residual")] for block in model.blocks()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("family", "kind"), WIRED)
def test_lifted_factors_give_the_same_bits(tiny, family, kind, dtype):
    _, model, inputs = tiny(family, settings_of(kind, "rmsnorm"))
    model, inputs = model.to(dtype), inputs.to(dtype) if inputs.is_floating_point() else inputs
    lifted = copy.deepcopy(model)
    for block in lifted.blocks():
        lift_factors(block)
    outputs = [one(inputs) for one in (model, lifted)]
    for output in outputs:
        output.float().square().mean().backward()
    assert torch.equal(*outputs)
    for mine, its in zip(model.parameters(), lifted.parameters(), strict=True):
        assert torch.equal(mine.grad, its.grad)
    assert list(model.state_dict()) == list(lifted.state_dict())


@pytest.mark.parametrize("kind", placements)
def test_factors_that_differ_by_layer_are_lifted(tiny, kind):
    """A float that a layer has for itself would be compiled into a program of its own."""
    _, model, _ = tiny("llama", settings_of(kind, "rmsnorm"))
    for block in model.blocks():
        lift_factors(block)
    layers = [
        [value for part in wiring for value in vars(part).values() if isinstance(value, float)]
        for wiring in wiring_of(model)
    ]
    assert all(layer == layers[0] for layer in layers)


def test_a_lifted_factor_is_on_the_cpu_whatever_the_default_device():
    class Scaled(nn.Module):
        factors = ("scale",)
        scale = 0.3

    layer = Scaled()
    with torch.device("meta"):
        lift_factors(layer)
    assert (layer.scale.device.type, layer.scale.dtype, layer.scale.item()) == ("cpu", torch.float64, 0.3)
