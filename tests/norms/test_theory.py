"""What the papers derive of the schemes, on whole models."""

import pytest
import torch
from norms import reference
from torch import nn


class Skip(nn.Module):
    def forward(self, x, *args):
        return x


@pytest.mark.parametrize("kind", ["lns", "mix", "deepnorm"])
def test_a_layer_that_is_skipped_leaves_the_others_their_number(tiny, kind):
    """The published pruning code shifts the indices of the later layers, and with them LNS's scales and Mix-LN's
    placements."""
    half = {"norm.alpha": 0.5} if kind == "mix" else {}
    experiment, model, inputs = tiny("llama", {"norm": kind, "model.layers": 4, "init.std": 0.3, **half})
    kinds = [experiment.norm.at(index, 4).kind for index in range(4)]

    def rule(x, attn, mlp, n, s, nth, L):
        return x if nth == 2 else reference.LAYERS[kinds[nth - 1]](x, attn, mlp, n, s, nth, L)

    layer = experiment.norm.layer
    weights = reference.Weights(model.named_parameters(), layer.kind, layer.model_dump())
    expected = reference.llama(inputs, weights, 4, 2, kinds, rule, False, True)
    model.layers[1] = Skip()
    torch.testing.assert_close(model(inputs), expected, atol=1e-10, rtol=1e-10)


def test_dynamic_tanh_scales_the_token_embedding(tiny):
    """Zhu et al. 2025, arXiv 2503.10622: by a learnable number that starts at sqrt(d), where tokens are looked up."""
    _, model, tokens = tiny("llama", {"norm.layer": "dyt"})
    assert model.embed_scale.scale.item() == pytest.approx(16**0.5)
    seen = []
    model.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(tokens)
    torch.testing.assert_close(seen[0], 4.0 * model.embed_tokens(tokens))
    for family, layer in (("llama", "rmsnorm"), ("vit", "dyt")):
        _, other, _ = tiny(family, {"norm.layer": layer})
        assert not any("embed_scale" in name for name, _ in other.named_parameters())
