"""A placement of one's own is one class: here it is, with everything that a placement can ask for."""

from typing import Literal

import pytest
import torch
from norms.cases import RESIDUAL
from torch import nn

from ablate.config.errors import AblateError
from ablate.norms import Placement, placements


class Doubled(nn.Module):
    def __init__(self, norm, factor):
        super().__init__()
        self.norm, self.factor = norm, factor

    def forward(self, x, f, *args):
        return x + self.factor * f(self.norm(x), *args)


class Own(Placement):
    """Pre-LN with a factor, a normed embedding and norms before the output projections."""

    kind: Literal["own"] = "own"
    factor: float = 2.0
    """What the sublayer's output is multiplied with."""
    rule = "x + factor f(N(x))"
    source = "this test"
    embedding_norm = True
    inner_norm = True

    def residual(self, site):
        return Doubled(site.norm(), self.factor)


class Paired(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x, f, *args):
        x, y = x if isinstance(x, tuple) else (x, x)
        return x + f(self.norm(x), *args), y


class Pairs(Placement):
    """Hands on two tensors, without saying so by its carrier."""

    kind: Literal["pairs"] = "pairs"
    rule = "x + f(N(x)), y"
    source = "this test"

    def residual(self, site):
        return Paired(site.norm())


@pytest.fixture
def own(registries):
    placements.register(Own)
    return Own


def is_normed(x):
    """Whether every token has a mean square of 1 and, where it was centred, a mean of 0."""
    return torch.allclose(x.pow(2).mean(-1), torch.ones(x.shape[:-1], dtype=x.dtype), atol=1e-2)


def inputs_of(module, model, inputs):
    caught = []
    with module.register_forward_pre_hook(lambda _, given: caught.append(given[0])):
        model(inputs)
    return caught[0]


def parts(family, model):
    """The blocks, and for a block the attention's and the MLP's output projection."""
    if family == "vit":
        return model.vit.blocks, [(b.attn.proj, b.mlp.fc2) for b in model.vit.blocks]
    return model.layers, [(b.attn.o_proj, b.mlp.down_proj) for b in model.layers]


@pytest.mark.parametrize("family", RESIDUAL)
def test_both_families_take_it(own, tiny, family):
    experiment, model, inputs = tiny(family, {"norm": "own", "norm.factor": 3, "init.std": 0.5})
    assert isinstance(experiment.norm, Own)
    blocks, outputs = parts(family, model)
    assert [b.mlp_residual.factor for b in blocks] == [3.0] * 3
    assert is_normed(inputs_of(blocks[0], model, inputs))
    for pair in outputs:
        for projection in pair:
            assert is_normed(inputs_of(projection, model, inputs))
    model(inputs).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("family", RESIDUAL)
def test_without_it_nothing_more_is_normed(tiny, family):
    _, model, inputs = tiny(family, {"norm": "pre", "init.std": 0.5})
    blocks, outputs = parts(family, model)
    assert not is_normed(inputs_of(blocks[0], model, inputs))
    assert not any(is_normed(inputs_of(p, model, inputs)) for pair in outputs for p in pair)


@pytest.mark.parametrize("family", RESIDUAL)
@pytest.mark.parametrize(("alpha", "embedding"), [(0.5, True), (0, False)])
def test_mixed_into_the_first_layers(own, tiny, family, alpha, embedding):
    _, model, inputs = tiny(family, {"norm": "mix", "norm.alpha": alpha, "norm.first": "own", "init.std": 0.5})
    blocks, outputs = parts(family, model)
    assert is_normed(inputs_of(blocks[0], model, inputs)) == embedding
    inner = [is_normed(inputs_of(pair[0], model, inputs)) for pair in outputs]
    assert inner == [embedding, False, False]


@pytest.mark.parametrize("family", RESIDUAL)
def test_a_state_that_is_no_tensor_is_told_where_it_is_handed_on(registries, tiny, family):
    placements.register(Pairs)
    _, model, inputs = tiny(family, {"norm": "pairs"})
    with pytest.raises(AblateError, match="Placement pairs hands on a tuple, where one tensor is taken"):
        model(inputs)
